"""From rows to questions with a known final answer."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stepjepa.data import report
from stepjepa.data.answers import last_boxed
from stepjepa.data.chat import RowError
from stepjepa.data.sources import TEXT_COLUMNS, RowSource, row_to_messages
from stepjepa.errors import DataError
from stepjepa.generation.options import GenerateOptions

REASONS = {
    **report.REASONS,
    "no_question": "no question",
    "no_ground_truth": "no final answer to compare with",
    "several_turns": "more than one question in a chat",
}
_LONGEST_BARE_ANSWER = 60


@dataclass(frozen=True)
class Problem:
    """A question that can be asked.

    Attributes:
        row: its row's number, as `RowSource.place` takes it.
        question, answer: texts of the row.
        ground_truth: the final answer.
    """

    row: int
    question: str
    answer: str
    ground_truth: str


@dataclass
class ProblemSet:
    """The questions of a file; every row that was read is in `problems` or counted in `skipped`."""

    source: str
    problems: list[Problem] = field(default_factory=list)
    rows_read: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    first_skipped: dict[str, str] = field(default_factory=dict)

    def fingerprint(self) -> str:
        """Changes with any question, ground truth, or their order."""
        digest = hashlib.sha256()
        for one in self.problems:
            digest.update(json.dumps([one.row, one.question, one.answer, one.ground_truth]).encode())
        return digest.hexdigest()[:16]


def read_problems(options: GenerateOptions) -> ProblemSet:
    """Read the rows of ``options.file``, up to ``max_examples`` questions.

    Raises:
        DataError: the file cannot be read, or holds nothing that can be asked.
    """
    rows = RowSource(options.file, options.dataset_split)
    found = ProblemSet(rows.name)
    for number, row in rows:
        if len(found.problems) == options.max_examples:
            break
        found.rows_read += 1
        try:
            found.problems.append(_problem(number, row, options))
        except RowError as error:
            found.skipped[error.reason] += 1
            found.first_skipped.setdefault(error.reason, f"{rows.place(number)}: {' '.join(str(error).split())}")
    if not found.rows_read:
        raise DataError(f"{rows.name}: the file or data set is empty; it needs at least one row")
    if not found.problems:
        first = next(iter(found.first_skipped.values()))
        raise DataError(f"none of {found.rows_read} rows can be asked; first: {first}")
    return found


def _problem(number: int, row: Any, options: GenerateOptions) -> Problem:
    if not isinstance(row, Mapping):
        raise RowError("not_an_object", f"the row is a {type(row).__name__}, not an object with columns")
    question, answer = _texts(row, options)
    named = options.ground_truth_column
    bare = _text(row.get(named or "ground_truth")).strip()
    if not bare and not named:
        bare = ground_truth(answer) or ""
    if not bare:
        where = f"column {named!r}" if named else "the answer (no ####, no \\boxed{}, too long for a bare answer)"
        raise RowError("no_ground_truth", f"no final answer in {where}; name its column with --ground_truth_column")
    for text in (question, answer, bare):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise RowError("broken_text", "a text holds half a character (a lone surrogate); remove it") from None
    return Problem(number, question, answer, bare)


def _texts(row: Mapping[str, Any], options: GenerateOptions) -> tuple[str, str]:
    """Question and answer of a row; the answer may be empty."""
    names = options.question_column, options.answer_column
    if names == (None, None) and row.get("messages") is not None:
        turns = [message for message in row_to_messages(row) if message["role"] != "system"]
        if [turn["role"] for turn in turns] != ["user", "assistant"]:
            raise RowError("several_turns", "the chat is not one question and its answer")
        if not turns[0]["content"].strip():
            raise RowError("no_question", "the user's message is empty")
        return turns[0]["content"], turns[1]["content"]
    if names == (None, None):
        names = next((pair for pair in TEXT_COLUMNS if row.get(pair[0]) is not None), TEXT_COLUMNS[0])
    left, right = names[0] or TEXT_COLUMNS[0][0], names[1] or TEXT_COLUMNS[0][1]
    question, columns = row.get(left), ", ".join(map(str, row)) or "none"
    if not isinstance(question, str) or not question.strip():
        raise RowError("no_question", f"no text in column {left!r} (columns found: {columns}); see --question_column")
    if options.answer_column is not None and right not in row:
        raise RowError("no_ground_truth", f"no column {right!r} (columns found: {columns}); see --answer_column")
    return question, _text(row.get(right))


def _text(value: Any) -> str:
    """A cell as text: numbers are written out, what is neither is no answer."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or value != value:
        return ""
    return str(value)


def ground_truth(answer: str) -> str | None:
    r"""The final answer in a known solution: what follows the last ``####`` on its line, else the last ``\boxed{}``, else
    the text itself where it is one short line. None without any of them: a number in a longer text may be any.
    """
    if "####" in answer:
        return answer.rpartition("####")[2].strip().partition("\n")[0].strip() or None
    boxed = last_boxed(answer)
    if boxed:
        return boxed
    bare = answer.strip()
    return bare if bare and "\n" not in bare and len(bare) <= _LONGEST_BARE_ANSWER else None
