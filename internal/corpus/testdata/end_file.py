# A file that a module's variable holds, where a function makes the module a cycle.
import os

left = open(os.dup(1), "w")
left.write("kept until the end\n")


def function():
    return left


class Holder:
    pass


held = Holder()
held.me, held.file = held, open(os.dup(1), "wb")
held.file.write(b"kept in a cycle\n")
print("end")
