# Who forks freezes and unfreezes what the collector looks at.
import gc
import os


class Noisy:
    def __del__(self, write=os.write):
        write(1, b"destroyed\n")


noisy = Noisy()
noisy.me = noisy
gc.freeze()
gc.unfreeze()
print("end")
