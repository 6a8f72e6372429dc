import subprocess, sys, os
print(subprocess.run(["sh", "-c", "echo out; echo err >&2; cat; exit 4"]).returncode)
print(subprocess.check_output([sys.executable, "-c", "import sys,os; print(sys.argv, os.getcwd() == sys.argv[1], sys.flags.unbuffered)", os.getcwd()], text=True))
p = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(p.communicate("through cat"))
print(os.system("exit 3") >> 8, os.popen("echo popen").read())
print(subprocess.run("ls /proc/self/fd | tr '\\n' ' '", shell=True, capture_output=True, text=True).stdout.split()[:3])
print(subprocess.run(["sh", "-c", "kill -9 $$"]).returncode)
try:
    subprocess.run(["no-such-program"])
except FileNotFoundError as e:
    print(e)
