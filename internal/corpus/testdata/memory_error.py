try:
    bytearray(1 << 62)
except (MemoryError, OverflowError) as e:
    print(type(e))
import ctypes
x = [0] * 1000000
print(len(x))
