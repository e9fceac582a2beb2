"""Lines of JSON in files that may be damaged: cut off, not UTF-8, endless, or written to while they are read.

A line is read as bytes, so that one bad line neither stops the reading nor shifts the numbers of later lines, and never
beyond a limit, so that a file without line ends cannot fill the memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from stepjepa.errors import DataError, RowError
from stepjepa.utils.files import parse_json

MAX_LINE_BYTES = 64 * 2**20  # a longer line is refused before all of it is read
_SKIPPED_AT_ONCE = 2**20


@contextmanager
def unchanged(path: str | os.PathLike[str]) -> Iterator[None]:
    """Within this context a file must stay as it is; what is being written looks broken.

    Raises:
        DataError: it was written to, replaced or removed meanwhile.
        OSError: there is no such file at the start.
    """
    before = os.stat(path)
    broken: DataError | None = None
    try:
        yield
    except DataError as error:
        broken = error
    try:
        now = os.stat(path)
    except FileNotFoundError:
        raise DataError(f"{path}: the file was removed while it was read; give a file that stays") from None
    if (now.st_ino, now.st_size, now.st_mtime_ns) != (before.st_ino, before.st_size, before.st_mtime_ns):
        grown = now.st_size != before.st_size
        size = f" ({before.st_size:,} bytes before, {now.st_size:,} now)" if grown else ""
        raise DataError(f"{path}: the file changed while it was read{size}; start again when nothing writes to it")
    if broken is not None:
        raise broken


def read_lines(file: BinaryIO, limit: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """The lines of a file from its position on, with their line ends.

    Of a line with more than `limit` bytes the first ``limit + 1`` come; the rest is skipped when the next line is asked for.
    """
    while raw := file.readline(limit + 1):
        yield raw
        if len(raw) > limit and not raw.endswith(b"\n"):
            while (rest := file.readline(_SKIPPED_AT_ONCE)) and not rest.endswith(b"\n"):
                pass


def line_text(raw: bytes, limit: int = MAX_LINE_BYTES) -> str:
    """The text of a line as `read_lines` gives it, without surrounding white space and byte-order mark.

    Raises:
        RowError: ``line_too_long``, ``not_utf8``, or ``truncated_line`` where a file ends inside a character.
    """
    if len(raw) > limit and not raw.endswith(b"\n"):
        size = f"{limit >> 20} MiB" if limit >= 2**20 else f"{limit} bytes"
        raise RowError("line_too_long", f"the line has more than {size}; one row a line is expected")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and error.end == len(raw):
            raise _cut_off("inside a character") from None
        raise RowError("not_utf8", f"not UTF-8 text ({error.reason}); save the file as UTF-8") from None
    return text.removeprefix("\ufeff").strip()


def line_value(text: str, raw: bytes) -> Any:
    """The JSON value that a line holds; `text` is `line_text` of `raw`.

    Raises:
        RowError: ``broken_json``, or ``truncated_line`` where the file ends in the middle of the object.
    """
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        if not raw.endswith(b"\n") and text[:1] == "{" and text[-1:] != "}":
            raise _cut_off(f"at character {len(text)} of it") from None
        why = f"{error.msg.removesuffix(' at')} at character {error.pos + 1}"
    except ValueError as error:
        why = str(error)
    raise RowError("broken_json", f"broken JSON ({why}); one JSON object per line is expected") from None


def _cut_off(where: str) -> RowError:
    return RowError(
        "truncated_line",
        f"the file ends in the middle of this line ({where}): it is cut off; copy it again, or remove the line",
    )
