import sys
sys.stdout.close()
sys.stderr.write("after\n")
