import warnings, sys
warnings.warn("user", UserWarning)
warnings.warn("deprecated", DeprecationWarning)
warnings.warn("pending", PendingDeprecationWarning)
def old():
    warnings.warn("from f", DeprecationWarning, stacklevel=2)
old()
print("a" is "a", "\d")
import asyncio
async def never(): pass
never()
