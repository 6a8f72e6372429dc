print(input("name? "), input(), sep="|")
import sys
for line in sys.stdin:
    print(repr(line))
print(input())
