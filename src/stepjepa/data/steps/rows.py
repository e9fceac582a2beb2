"""The steps of a row: those that it holds itself, else those that a splitter finds in its answers.

`steps_of` is the one place that answers what the steps of a row are; `rules_for` decides for a data set how it does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from stepjepa.data.blocks import CharSpan
from stepjepa.data.chat import row_to_messages
from stepjepa.data.columns import TOTAL_COLUMN, column_value, listed_steps
from stepjepa.data.options import STEPS_COLUMN, PairColumns
from stepjepa.data.steps.splitters import StepSplitter, choose_splitter, make_splitter
from stepjepa.errors import RowError, attempted

LISTED = "list"  # the splitter's name that takes a row's own steps and refuses a row without
_SAMPLED_ROWS = 200  # that a splitter is chosen by


class StepRules(NamedTuple):
    """How the steps of a data set's rows are found.

    Attributes:
        splitter: finds those of an answer whose row does not hold them.
        column: the column in which a row may hold the steps of its last answer, None to look into none.
        required: whether a row that does not hold them there is refused; else the splitter serves it.
    """

    splitter: StepSplitter
    column: str | None = None
    required: bool = False

    @property
    def name(self) -> str:
        """The splitter's name, `LISTED` where none is asked."""
        return LISTED if self.required else self.splitter.name


class RowSteps(NamedTuple):
    """The steps of one row.

    Attributes:
        spans: of each answer's steps, in characters of the answer.
        own: whether those of the last answer are the row's own.
        unread: why the steps that the row holds are not taken: a key of `report.REASONS`, and what is wrong. None where they
            are, or where it holds none.
        total: what `TOTAL_COLUMN` says, None where it says no number.
    """

    spans: list[list[CharSpan]]
    own: bool = False
    unread: tuple[str, str] | None = None
    total: int | None = None

    @property
    def found(self) -> int:
        """Steps of the last answer, which `total` is about."""
        return len(self.spans[-1])


def steps_of(row: Mapping[str, Any], answers: Sequence[str], rules: StepRules) -> RowSteps:
    """The steps of a row, whose assistant messages are given in order: of the row, or as a chat template writes them.

    Raises:
        RowError: `rules.required`, and the row holds no steps, or they do not stand in its last answer.
    """
    total = _total_of(row)
    split = rules.splitter.spans
    unread = None
    listed = column_value(row, rules.column) if rules.column else None
    if rules.required or listed not in (None, []):
        try:
            own = spans_of_steps(answers[-1], listed_steps(row, str(rules.column)))
        except RowError as error:
            if rules.required:
                raise
            unread = error.reason, str(error)
        else:
            # They are those of the last answer; the row says nothing about others.
            others = [[] if rules.required else split(answer) for answer in answers[:-1]]
            return RowSteps([*others, own], own=True, total=total)
    return RowSteps([split(answer) for answer in answers], unread=unread, total=total)


def _total_of(row: Mapping[str, Any]) -> int | None:
    """The number in `TOTAL_COLUMN`: as JSON has it, or as a table writes it."""
    try:
        number = float(row.get(TOTAL_COLUMN))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() else None


def names_steps(row: object, column: str = STEPS_COLUMN) -> bool:
    """Whether a row says itself that its answer has several steps: it holds them, or their number."""
    if not isinstance(row, Mapping):
        return False
    own = row.get(column)
    return (isinstance(own, list) and len(own) > 1) or (_total_of(row) or 0) > 1


def spans_of_steps(text: str, steps: Sequence[str]) -> list[CharSpan]:
    """Spans of steps that are known already, such as those of a column, found one after the other in `text`.

    White space at a step's ends does not count, and runs of it inside may differ. Such steps may cut blocks.

    Raises:
        RowError: a step is not in `text` after the one before.
    """
    starts: list[int] = []
    reached = 0
    for number, step in enumerate(steps, start=1):
        words = step.strip()
        if not words:
            continue
        start = text.find(words, reached)
        end = start + len(words)
        if start < 0:
            spaced = re.compile(r"\s+".join(map(re.escape, words.split()))).search(text, reached)
            if spaced is None:
                where = f"after step {number - 1}" if number > 1 else "at all"
                beginning = words if len(words) <= 60 else f"{words[:60]}..."
                what = f"step {number} of {len(steps)} does not stand in the answer {where}: {beginning!r}"
                raise RowError("steps_not_found", what)
            start, end = spaced.span()
        starts.append(start)
        reached = end
    if not starts:
        return [(0, len(text))] if text.strip() else []
    return list(zip([0, *starts[1:]], [*starts[1:], len(text)], strict=True))


def join_steps(steps: Sequence[str], separator: str = "\n\n") -> str:
    """One text of steps that are known already. Blank steps are left out."""
    return separator.join(step for step in steps if step.strip())


def rules_for(
    source: Iterable[tuple[int, Any]],
    name: str,
    separator: str = "\n\n",
    column: str = STEPS_COLUMN,
    columns: PairColumns | None = None,
    splitter: StepSplitter | None = None,
) -> StepRules:
    """How the steps of a data set's rows are found.

    With ``auto`` a row's own steps are taken where they stand in its answer, and one splitter serves all other rows: the one
    that `choose_splitter` names for those among the first rows, or for all of the first rows where each holds its steps.

    Args:
        source: a `RowSource`; read with ``auto`` alone.
        name: one of `STYLES`, or `LISTED`.
        column: the column that may hold a row's steps, for ``auto`` and `LISTED`.
        splitter: the one that was chosen for another data set of the run.
    """
    if name == LISTED:
        return StepRules(make_splitter("separator"), column, True)
    if name != "auto":
        return StepRules(make_splitter(name, separator))
    if splitter is not None:
        return StepRules(splitter, column)
    rules = StepRules(make_splitter(name, separator), column)
    known: list[str] = []  # answers of the first rows
    without_steps: list[str] = []  # those of rows that do not hold their steps
    for _, row in islice(source, _SAMPLED_ROWS):
        messages = attempted(row_to_messages, row, None, columns)
        if isinstance(messages, RowError):
            continue
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        known += answers
        if not steps_of(row, answers[-1:], rules).own:
            without_steps += answers
    chosen = choose_splitter(without_steps or known, separator)
    return StepRules(make_splitter(chosen, separator), column)
