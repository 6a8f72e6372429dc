import sys, os
data = sys.stdin.buffer.read()
print(len(data), sum(data), os.isatty(0))
