import sys
class C:
    def __str__(self): raise ValueError("no text")
sys.exit(C())
