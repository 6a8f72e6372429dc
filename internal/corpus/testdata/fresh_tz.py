import time
print(time.tzname)
