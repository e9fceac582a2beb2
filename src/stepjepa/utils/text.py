"""Text of others in our own lines: what a terminal could act on becomes an escape, and a line stays a line.

Data, file names, model names and other programs' messages may hold control characters, text that runs backwards, line breaks
and lone surrogates.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from stepjepa.utils.files import json_bytes

PAGE = 80  # columns of what is printed to be read
LONGEST_LINE = 480  # characters of an error line
_MIDDLE = " ... "
_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")


def printable(text: str) -> str:
    r"""`text` with everything that a terminal could act on, or could not write, as an escape (``\x1b``, ``\u202e``).

    Line breaks, letters, punctuation and emoji stay.
    """
    return text if text.isprintable() else "\n".join(map(escaped, text.split("\n")))


def escaped(text: str) -> str:
    r"""`text` on one line, line breaks and all that is not printable as escapes (``\n``, ``\x1b``)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str, limit: int = LONGEST_LINE) -> str:
    """`text` on one printable line of at most `limit` characters, white space folded; of a longer one head and tail stay."""
    line = escaped(" ".join(text.split()))
    if len(line) <= limit:
        return line
    tail = (limit - len(_MIDDLE)) // 3
    return line[: limit - len(_MIDDLE) - tail] + _MIDDLE + line[len(line) - tail :]


def lone_surrogate(text: str) -> str | None:
    r"""The first half of a character pair that lacks its other half, as ``\ud800``; None where all are characters."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return escaped(text[error.start])
    return None


def printable_json(record: object) -> str:
    """`record` as JSON over several lines that a terminal can show; NaN and infinity become null."""

    def shown(character: str) -> str:
        if character == "\n" or character.isprintable():
            return character
        return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]

    return "".join(map(shown, json_bytes(record, indent=2).decode()))


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def scaled(value: float | None) -> str:
    """A large number with a prefix: 1.23e15 is "1.23 P"."""
    if value is None:
        return "-"
    power = 0 if value < 1 else min(int(math.log10(value) / 3), len(_PREFIXES) - 1)
    return f"{value / 1000**power:.3g} {_PREFIXES[power]}".rstrip()


def written(value: float | None, form: str) -> str:
    """A number in a format, a blank in front of its percent sign; "-" for none."""
    return "-" if value is None else format(value, form).replace("%", " %")


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns two blanks apart, the first flush left, the others right; no blanks at the end of a line."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in (head, *rows)
    ]


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """`text` in lines of at most `width` characters that begin with `first` and with `rest`; words stay whole."""
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def folded(lines: Sequence[str], width: int = 100) -> list[str]:
    """`lines` with those that are longer than a page is wide broken, indented further where they continue."""
    out = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        short = len(line) <= width or len(line.split()) < 4
        out += [line] if short else wrapped(line, width, "", indent)
    return out


def legend(words: Mapping[str, str]) -> list[str]:
    """What words mean, ``word: meaning; word: meaning``, in lines of a page."""
    return wrapped("; ".join(f"{word}: {meaning}" for word, meaning in words.items()), PAGE, "  ", "  ")


def slug(label: str) -> str:
    """A label as a part of a file's name."""
    return re.sub(r"[^\w.-]+", "-", label).strip("-.") or "model"


def labels_of(names: Sequence[str]) -> list[str]:
    """Short names: as many last parts of each path as tell it from the others; two for a checkpoint."""
    parts = []
    for name in names:
        path = Path(name).expanduser()
        parts.append(path.resolve().parts if path.is_dir() else Path(name).parts)
    counts = [2 if part[-1].startswith("checkpoint-") else 1 for part in parts]
    while True:
        labels = ["/".join(part[-count:]) for part, count in zip(parts, counts, strict=True)]
        slugs = [slug(label).casefold() for label in labels]  # files of a system that knows no case
        alike = [number for number, label in enumerate(slugs) if slugs.count(label) > 1]
        longer = [number for number in alike if counts[number] < len(parts[number])]
        if not longer:
            break
        for number in longer:
            counts[number] += 1
    for number in alike:  # equal paths
        labels[number] += f"-{number + 1}"
    return [escaped(label) for label in labels]
