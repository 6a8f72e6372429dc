"""Draws the monthly means of a CSV file of day,celsius as a PNG bar chart."""

import csv
import statistics
import struct
import sys
import zlib

WIDTH, HEIGHT, MARGIN = 480, 240, 20
WHITE, GREY, BLUE = (255, 255, 255), (200, 200, 200), (40, 90, 170)


def monthly_means(path):
    months = {}
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            months.setdefault(row["day"][:7], []).append(float(row["celsius"]))
    return {month: statistics.mean(values) for month, values in sorted(months.items())}


def draw(means):
    pixels = [[WHITE] * WIDTH for _ in range(HEIGHT)]
    low, high = min(0, *means.values()), max(means.values())
    scale = (HEIGHT - 2 * MARGIN) / (high - low)
    zero = HEIGHT - MARGIN - int(-low * scale)
    step = (WIDTH - 2 * MARGIN) // len(means)
    for i, value in enumerate(means.values()):
        top, bottom = sorted((zero, zero - int(value * scale)))
        for y in range(top, bottom):
            for x in range(MARGIN + i * step + 4, MARGIN + (i + 1) * step - 4):
                pixels[y][x] = BLUE
    for x in range(MARGIN, WIDTH - MARGIN):
        pixels[zero][x] = GREY
    return pixels


def png(pixels):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + bytes(v for pixel in row for v in pixel) for row in pixels)
    header = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


means = monthly_means(sys.argv[1])
for month, value in means.items():
    print(f"{month}: {value:.1f} °C")
with open(sys.argv[2], "wb") as out:
    out.write(png(draw(means)))
