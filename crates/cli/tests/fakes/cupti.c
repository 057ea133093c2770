// A CUPTI that only says which one it is: VERSION, given to the compiler.
int cuptiGetVersion(unsigned * version) { *version = VERSION; return 0; }
