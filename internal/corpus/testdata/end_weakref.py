# Callbacks of weak references to what a cycle holds.
import os
import weakref


class Node:
    def __init__(self):
        self.me = self


def gone(_, write=os.write):
    write(1, b"gone\n")


node = Node()
watch = weakref.ref(node, gone)
print("end")
