import subprocess
print(subprocess.run(["head", "-n1"], capture_output=True).stdout)
