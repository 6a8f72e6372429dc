import os, sys
if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, "-u", "main.py", "again"])
print(sys.argv, sys.orig_argv[1:], [k for k in os.environ if "SPARE" in k or k == "PYTHONPATH"])
sys.exit(2)
