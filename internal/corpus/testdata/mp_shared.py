from multiprocessing import shared_memory, Value, Lock
m = shared_memory.SharedMemory(create=True, size=10, name="corpus_shared")
m.buf[0] = 7
v = Value("i", 3)
print(m.buf[0], v.value)
m.close(); m.unlink()
