# Objects that the collector does not know, in a list that it does.
import os


class Small:
    __slots__ = ()

    def __del__(self, write=os.write):
        write(1, b"destroyed\n")


def ring():
    held = [Small(), ring]
    held.append(held)
    return held


ring()
print("end")
