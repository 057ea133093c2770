# The address is that of the first mulss of the loop in this build (objdump), added to where the program is loaded
set pagination off
set debuginfod enabled off
break main
run
delete
break *(0x555555554000+0x2a1167)
continue
p/x $r15
continue
p/x $r15
continue
p/x $r15
