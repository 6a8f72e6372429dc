# Who watches the collector sees it at the end, and may have turned it off before.
import gc

gc.disable()
gc.enable()


def watch(phase, info, done=[]):
    if not done:
        done.append(1)
        import os
        os.write(1, b"collected\n")


print("end")
gc.callbacks.append(watch)
