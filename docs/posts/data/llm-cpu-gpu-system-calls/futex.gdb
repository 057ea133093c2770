# Stops at a call of futex in the midst of generating
set pagination off
set debuginfod enabled off
set print thread-events off
handle SIGCHLD nostop noprint
catch syscall futex
run
ignore 1 400
continue
info registers rax rdi rsi rdx rip
x/2xw $rdi
backtrace 6
info threads
