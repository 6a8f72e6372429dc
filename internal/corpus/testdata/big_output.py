import sys
for i in range(2000):
    print(i, "x" * 500)
sys.stderr.write("e" * 300000)
sys.stdout.buffer.write(bytes(range(256)) * 1000)
