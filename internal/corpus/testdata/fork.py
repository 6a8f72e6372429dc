import os, sys
pid = os.fork()
if pid == 0:
    print("child", os.getpgid(0) == os.getppid())
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
pid = os.fork()
if pid == 0:
    raise ValueError("child fails")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
os.execvp("sh", ["sh", "-c", "echo replaced $0 $$ | wc -w; exit 5"])
