# What a cycle holds is destroyed at the interpreter's end.
import sys


class Noisy:
    def __init__(self, name):
        self.name, self.me = name, self

    def __del__(self):
        sys.stdout.write("destroyed: %s\n" % self.name)


class Heir(Noisy):
    pass


Noisy("garbage")
kept = Heir("kept")
print("end")
