"""Text for printing: untrusted text made safe, formatted numbers, tables, and labels.

Data, file names, model names and messages of other programs may contain control characters, right-to-left overrides, line
breaks and lone surrogates, which are printed as escapes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

from stepjepa.utils.files import json_bytes

# Characters of an error line.
LONGEST_LINE = 480
_MIDDLE = " ... "
_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")


def printable(text: str) -> str:
    r"""`text` with escapes (``\x1b``, ``\u202e``) for all characters that a terminal could interpret or could not show.

    Line breaks, letters, punctuation and emoji stay.
    """
    return text if text.isprintable() else "\n".join(map(escaped, text.split("\n")))


def escaped(text: str) -> str:
    r"""`text` on one line, with escapes for line breaks and everything that is not printable (``\n``, ``\x1b``)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str, limit: int = LONGEST_LINE) -> str:
    """`text` on one printable line with white space collapsed; beyond `limit` characters, the middle is left out."""
    line = escaped(" ".join(text.split()))
    if len(line) <= limit:
        return line
    tail = (limit - len(_MIDDLE)) // 3
    return line[: limit - len(_MIDDLE) - tail] + _MIDDLE + line[len(line) - tail :]


def lone_surrogate(text: str) -> str | None:
    r"""The first lone surrogate, as ``\ud800``; None if the text has none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return escaped(text[error.start])
    return None


def printable_json(record: object) -> str:
    """`record` as indented JSON that is safe to print; NaN and infinity become null."""

    def shown(character: str) -> str:
        if character == "\n" or character.isprintable():
            return character
        return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]

    return "".join(map(shown, json_bytes(record, indent=2).decode()))


def counted(number: int, noun: str) -> str:
    """``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def clock(seconds: float) -> str:
    """``0:01:05``. A damaged record may contain more seconds than `datetime.timedelta` can represent."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def scaled(value: float | None) -> str:
    """A large number with a prefix: 1.23e15 is "1.23 P"."""
    if value is None:
        return "-"
    power = 0 if value < 1 else min(int(math.log10(value) / 3), len(_PREFIXES) - 1)
    return f"{value / 1000**power:.3g} {_PREFIXES[power]}".rstrip()


def written(value: float | None, form: str) -> str:
    """A formatted number, with a space before a percent sign; "-" for None."""
    return "-" if value is None else format(value, form).replace("%", " %")


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table: two spaces between columns, the first aligned left, the others right; no trailing spaces."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in (head, *rows)
    ]


def slug(label: str) -> str:
    """A label as part of a file name."""
    return re.sub(r"[^\w.-]+", "-", label).strip("-.") or "model"


def labels_of(names: Sequence[str]) -> list[str]:
    """Short labels of paths: their last parts, as many as make them unique, and at least two for checkpoints. Without such a
    number of parts, as for equal paths, the last parts get numbers."""
    paths = [Path(name).expanduser() for name in names]
    parts = [(path.resolve() if path.is_dir() else path).parts for path in paths]
    first = 1 + any(part[-1].startswith("checkpoint-") for part in parts)
    for count in range(first, max(first, *map(len, parts)) + 1):
        labels = [escaped("/".join(part[-count:])) for part in parts]
        # Labels become file names, and some file systems ignore case.
        if len({slug(label).casefold() for label in labels}) == len(labels):
            return labels
    return [escaped(f"{part[-1]}-{number}") for number, part in enumerate(parts, 1)]
