# The interpreter flushes the standard output when the exit's functions have run.
import os
import sys


class Writer:
    def __init__(self):
        self.file = None

    def write(self, text):
        return os.write(1, text.encode())

    def flush(self):
        if self.file is None:
            self.file = open(os.dup(1), "w")
            self.file.write("kept by flush\n")


sys.stdout = writer = Writer()


def function():
    return writer


os.write(1, b"end\n")
