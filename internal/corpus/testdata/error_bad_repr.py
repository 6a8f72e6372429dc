class E(Exception):
    def __str__(self): raise OSError("no")
raise E
