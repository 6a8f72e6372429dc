import subprocess, sys, os
# What a run that ended has flushed is seen by the next: this one runs it as a child.
code = "f = open('o', 'w'); f.write('kept'); g = open('p', 'w'); g.write('also'); c = [g]; c.append(c)"
print(subprocess.run([sys.executable, "-c", code]).returncode, open("o").read(), open("p").read())
