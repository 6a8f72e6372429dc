# A class of classes that can tell when it is asked.
import os


class Meta(type):
    def __eq__(self, other):
        os.write(1, b"asked\n")
        return self is other

    __hash__ = type.__hash__


class Asked(metaclass=Meta):
    pass


asked = Asked()
print("end")
