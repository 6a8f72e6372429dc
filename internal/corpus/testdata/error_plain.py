def f(n):
    if n == 0:
        return {}["missing ü"]
    return f(n - 1)

f(3)
