# weakref's own callback, which calls the program's.
import os
import weakref


class Node:
    def method(self):
        pass


node = Node()
node.me = node
watch = weakref.WeakMethod(node.method, lambda _, write=os.write: write(1, b"gone\n"))
del node
print("end")
