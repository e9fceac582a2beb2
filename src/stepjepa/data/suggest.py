r"""What to measure, judged by the look of the data: the metric in the commands that a run or a report suggests."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from stepjepa.data.files import FILE_SUFFIXES, file_rows
from stepjepa.data.sources import ANSWER_COLUMNS
from stepjepa.errors import StepJepaError

_ROWS = 20
_MARK = re.compile(r"\\boxed|^####[ \t]*\S+\s*\Z", re.MULTILINE)


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
    marked = sum(bool(_MARK.search(answer)) for answer in rows)
    return "gsm8k" if 2 * marked > len(rows) else "exact"


def _answer(row: Any) -> str:
    """The last message's text; of a row without messages that of the column with the answer."""
    if not isinstance(row, Mapping):
        return ""
    messages = row.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[-1], Mapping):
        return str(messages[-1].get("content"))
    found = next((row[name] for name in (*ANSWER_COLUMNS, "response") if name in row), "")
    return found if isinstance(found, str) else ""
