# A proxy is a weak reference too.
import os
import weakref


class Node:
    pass


node = Node()
node.me = node
watch = weakref.proxy(node, lambda _, write=os.write: write(1, b"gone\n"))
del node
print("end")
