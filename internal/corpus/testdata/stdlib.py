import json, re, collections, datetime, decimal, hashlib, math, random, sqlite3, csv, io, zlib, base64, itertools, functools, statistics, uuid, textwrap, argparse, string, struct, heapq, bisect, fractions
random.seed(1)
print(random.random(), decimal.Decimal(1) / 3, hashlib.sha256(b"x").hexdigest(), math.pi, json.dumps({"ü": [1]}))
print(sqlite3.connect(":memory:").execute("select 1+1").fetchall(), zlib.crc32(b"x"), statistics.mean([1, 2]))
argparse.ArgumentParser().parse_args(["--bad"])
