import sys
class C:
    def __str__(self): return "C as text"
sys.exit(C())
