r"""What to measure, judged by the look of the data: the metric in the commands that a run or a report suggests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from stepjepa.data.files import FILE_SUFFIXES, file_rows
from stepjepa.errors import StepJepaError

_ROWS = 20
_MARKS = ("\\boxed", "####")


def suggested_metric(file: str | os.PathLike[str] | None) -> str:
    r"""``gsm8k`` where the first rows of a local file mostly mark a final answer (`\boxed{}`, `####`), else ``exact``.

    A Hub data set, and what cannot be read, is not looked at.
    """
    path = Path(os.path.expanduser(file)) if file else None
    if path is None or path.suffix.lower() not in FILE_SUFFIXES or not path.is_file():
        return "exact"
    try:
        rows = [_answer(row) for _, row in islice(file_rows(path), _ROWS)]
    except (StepJepaError, OSError):
        return "exact"
    marked = sum(any(mark in answer for mark in _MARKS) for answer in rows)
    return "gsm8k" if 2 * marked > len(rows) else "exact"


def _answer(row: Any) -> str:
    """The last message's text; of a row without messages all its texts."""
    if not isinstance(row, Mapping):
        return ""
    messages = row.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[-1], Mapping):
        return str(messages[-1].get("content"))
    return " ".join(value for value in row.values() if isinstance(value, str))
