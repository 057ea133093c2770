# The address is that of the mapping: info proc mappings
set pagination off
set debuginfod enabled off
set print thread-events off
handle SIGCHLD nostop noprint
break llama_decode
run
x/16xb 0x7ffff7406000
info registers rip rdi
