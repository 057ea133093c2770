# The mapping of the model when the first graph is computed
set pagination off
set debuginfod enabled off
set print thread-events off
handle SIGCHLD nostop noprint
break llama_decode
run
python import gdb,subprocess; print(subprocess.run("grep -A 5 dense.gguf /proc/%d/smaps" % gdb.selected_inferior().pid, shell=True, capture_output=True, text=True).stdout)
info registers rip rdi rsi
