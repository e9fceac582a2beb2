"""From the rows of a file to questions whose final answer is known, for `stepjepa generate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stepjepa.config.option import Names
from stepjepa.data.answers import after_hashes, last_boxed
from stepjepa.data.blocks import answer_of
from stepjepa.data.chat import one_turn, row_to_messages
from stepjepa.data.columns import answer_column, as_object, column_value, form_of
from stepjepa.data.options import PairColumns, text_of
from stepjepa.data.report import RowCounts
from stepjepa.data.sources import RowSource
from stepjepa.errors import RowError
from stepjepa.generation.options import GenerateOptions
from stepjepa.generation.output import Record, digest_of
from stepjepa.utils.text import lone_surrogate

_NAME = Names(GenerateOptions)
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
class ProblemSet(RowCounts):
    """The questions of a file; every row that was read is in `problems` or counted."""

    problems: list[Problem] = field(default_factory=list)

    def record(self) -> Record:
        """What is written of the input. Its fingerprint changes with any question, ground truth, or their order."""
        digest = digest_of([one.row, one.question, one.answer, one.ground_truth] for one in self.problems)
        return {"file": self.source, "questions": len(self.problems), "fingerprint": digest}


def read_problems(options: GenerateOptions) -> ProblemSet:
    """Read the rows of ``options.file``, up to ``max_examples`` questions.

    Raises:
        DataError: the file cannot be read, or holds nothing that can be asked.
    """
    rows = RowSource(options.file, options.dataset_split)
    asked = ProblemSet(rows.name)
    for number, row in rows:
        asked.rows_read += 1
        try:
            asked.problems.append(_problem(number, row, options))
        except RowError as error:
            asked.skip(error, rows.place(number))
        if len(asked.problems) == options.max_examples:
            break
    asked.require(asked.problems, "can be asked")
    return asked


def _problem(number: int, row: Any, options: GenerateOptions) -> Problem:
    question, answer = _question_and_answer(as_object(row), options)
    column = options.ground_truth_column
    bare = text_of(column_value(row, column or "ground_truth")).strip()
    if not bare and column is None:
        bare = ground_truth(answer) or ""
    if not bare:
        where = f"column {column!r}" if column else "the answer (no ####, no \\boxed{}, too long for a bare answer)"
        raise RowError(
            "no_ground_truth", f"no final answer in {where}; name its column with --{_NAME.ground_truth_column}"
        )
    if lone_surrogate(bare):
        raise RowError("broken_text", "the final answer holds half a character (a lone surrogate); remove it")
    return Problem(number, question, answer, bare)


def _question_and_answer(row: Mapping[str, Any], options: GenerateOptions) -> tuple[str, str]:
    """The question of a row and its answer, which may be a number, or missing where it has no column of its own."""
    columns = None
    held = answer_column(row)
    if options.question_column or options.answer_column:
        form = form_of(row)
        held = options.answer_column or form.answer
        columns = PairColumns(options.question_column or form.question, held)
    value = column_value(row, held)
    if isinstance(value, (int, float)) or (value is None and options.answer_column is None):
        row = {**row, held: text_of(value)}
    _, question, answer = one_turn(row_to_messages(row, None, columns))
    if not question.strip():
        raise RowError("no_question", "the question is empty")
    return question, answer


def ground_truth(answer: str) -> str | None:
    r"""The final answer in a known solution: what follows the first ``####`` on its line, else the last ``\boxed{}``, else
    the text itself where it is one short line. None without any of them: a number in a longer text may be any.
    """
    answer = answer_of(answer)
    marked = after_hashes(answer) or last_boxed(answer)
    if marked or "####" in answer:
        return marked
    bare = answer.strip()
    return bare if bare and "\n" not in bare and len(bare) <= _LONGEST_BARE_ANSWER else None
