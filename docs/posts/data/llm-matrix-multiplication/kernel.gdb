# The symbol ends in a hash of the build: nm tensorscope-lab | grep 6avx5126avx512
set pagination off
set debuginfod enabled off
set print thread-events off
break _ZN15tensorscope_lab8gemm_cpu6avx5126avx51217h3434c1a766e780d7E if $rdi >= 768
run
info registers rdi rsi rdx rcx
