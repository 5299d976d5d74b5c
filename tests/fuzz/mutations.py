"""How a valid input becomes an invalid one."""

import numpy as np

# Values that are at the edge of something, as texts of a specification or of an option.
NUMBERS = ("0", "1", "-1", "2", "3", "0.5", "-0.0", "1e-300", "1e300", "1e308", "1e400", "nan", "inf", "-inf", "1_000")
LONG = ("9" * 17, "9" * 400, "9" * 5000, "0x" + "f" * 5000, "x" * 10_000)
WORDS = ("", " ", "true", "'relu'", "[]", "[1, 2]", "{}", "\u00e9\u4e2d\U0001f600", "%s%n", "a\\b", '"', "\x00")
ATTACKS = ("'; import os", "__import__('os').system('true')", "../../etc/passwd", "/dev/zero")
EDGES = NUMBERS + LONG + WORDS + ATTACKS


def edge(rng: np.random.Generator) -> str:
    """One of the values at an edge."""
    return EDGES[int(rng.integers(len(EDGES)))]


def mutate_bytes(rng: np.random.Generator, content: bytes) -> bytes:
    """A file with some of it changed, cut off, doubled or left out."""
    changed = bytearray(content)
    for _ in range(int(rng.integers(1, 6))):
        place = int(rng.integers(max(len(changed), 1)))
        kind = int(rng.integers(7))
        length = int(2 ** rng.uniform(0, 10))
        if kind == 0 and changed:
            changed[place % len(changed)] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            changed[place : place + length] = rng.bytes(min(length, 64))
        elif kind == 2:
            del changed[place:]
        elif kind == 3:
            del changed[place : place + length]
        elif kind == 4:
            changed[place:place] = changed[place : place + length]
        elif kind == 5:
            changed[place : place + 4] = [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f"][int(rng.integers(3))]
        else:
            changed[place:place] = bytes([int(rng.integers(256))]) * min(length, 256)
    return bytes(changed)


def mutate_text(rng: np.random.Generator, text: str) -> str:
    """A text with words and characters changed, doubled, left out or replaced by values at an edge."""
    for _ in range(int(rng.integers(1, 4))):
        lines = text.split("\n")
        place = int(rng.integers(len(lines)))
        kind = int(rng.integers(6))
        if kind == 0 and "=" in lines[place]:
            lines[place] = lines[place].split("=")[0] + "= " + edge(rng)
        elif kind == 1:
            del lines[place]
        elif kind == 2:
            lines.insert(place, lines[int(rng.integers(len(lines)))])
        elif kind == 3 and lines[place]:
            at = int(rng.integers(len(lines[place])))
            lines[place] = lines[place][:at] + chr(int(rng.integers(32, 0x250))) + lines[place][at + 1 :]
        elif kind == 4 and lines[place]:
            at = int(rng.integers(len(lines[place])))
            lines[place] = lines[place][:at] + edge(rng) + lines[place][at:]
        else:
            other = int(rng.integers(len(lines)))
            lines[place], lines[other] = lines[other], lines[place]
        text = "\n".join(lines) or " "
    return text
