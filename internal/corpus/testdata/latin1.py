# -*- coding: latin-1 -*-
print("read as the cookie says: ü", len("ü"))
