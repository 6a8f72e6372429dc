class Mine(Exception):
    pass

def inner():
    try:
        1 / 0
    except ZeroDivisionError as e:
        raise Mine("first\nsecond line") from e

try:
    inner()
except Mine:
    [].pop()
