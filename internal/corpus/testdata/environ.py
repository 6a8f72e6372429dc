import os, subprocess, sys, ctypes
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
print(list(os.environ.items()))
for name in ("FOO", "EMPTY", "ÜNI", "SANDBOX_EXEC_ID", "PYTHONPATH", "HOME", "PATH", "NODE_OPTIONS", "SANDBOX_SPARE"):
    print(name, os.environ.get(name), os.getenv(name), os.environb.get(name.encode()), libc.getenv(name.encode()))
child = "import os; print(list(os.environ.items()))"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout)
sys.stdout.flush()
os.system("env | grep -v '^_=' | sort")
n = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
i = 0
while n[i]:
    print(n[i])
    i += 1
