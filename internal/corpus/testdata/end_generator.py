# A suspended generator in a cycle has its finally block run.
import os


def steps(held, write=os.write):
    try:
        yield held
    finally:
        write(1, b"finally\n")


held = []
held.append(steps(held))
next(held[0])
print("end")
