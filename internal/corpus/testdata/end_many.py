# So many objects that they have been looked at before the end, among them one that tells.
import os


class Noisy:
    def __del__(self, write=os.write):
        write(1, b"destroyed\n")


noisy = Noisy()
noisy.me = noisy
kept = [[i] for i in range(200000)]
print(len(kept))
