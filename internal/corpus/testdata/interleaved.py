import sys
for i in range(50):
    print("o", i)
    print("e", i, file=sys.stderr)
    sys.stdout.write("part")
