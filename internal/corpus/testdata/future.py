"""The doc."""
from __future__ import annotations
def f(x: Missing) -> Other: ...
print(__doc__, f.__annotations__)
import __future__
print(compile("1", "x", "eval").co_flags & __future__.annotations.compiler_flag)
