"""The steps of a row: those that it holds itself, else those that a splitter finds in its answers.

A row may hold its steps in a column (`STEPS_COLUMN`, as `stepjepa prepare` writes it): a list of texts that are in its last
answer one after the other. What precedes the first one belongs to it, what follows a step to that step, so that spans cover
the answer. `TOTAL_COLUMN` may say how many steps that answer has; it decides nothing about the row, and a number that is not
the one found is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from stepjepa.data.sources import PairColumns, listed_steps, row_to_messages
from stepjepa.data.steps.splitters import StepSplitter, choose_splitter, make_splitter
from stepjepa.data.steps.text import CharSpan
from stepjepa.errors import RowError

STEPS_COLUMN, TOTAL_COLUMN = "steps", "total_steps"
LISTED = "list"  # the step_splitter that takes a row's own steps and refuses a row without
_SAMPLED_ROWS = 200  # that a splitter is chosen by
_MOST = 10**9  # a larger number is none of steps


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
        """What ``--step_splitter`` calls the splitter, `LISTED` where none is asked."""
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


def steps_of(row: Any, answers: Sequence[str], rules: StepRules) -> RowSteps:
    """The steps of a row.

    Args:
        answers: its assistant messages in order, as they are read: of the row, or as a chat template writes them.

    Raises:
        RowError: `rules.required`, and the row holds no steps, or they do not stand in its last answer.
    """
    total, unread = _total_of(row), None
    if rules.required:
        own = spans_of_steps(answers[-1], listed_steps(row, str(rules.column)))
        return RowSteps([*([] for _ in answers[1:]), own], True, None, total)
    if _holds_steps(row, rules.column):
        try:
            own = spans_of_steps(answers[-1], listed_steps(row, str(rules.column)))
            # They are those of the last answer; the row says nothing about others.
            return RowSteps([*map(rules.splitter.spans, answers[:-1]), own], True, None, total)
        except RowError as error:
            unread = error.reason, str(error)
    return RowSteps(list(map(rules.splitter.spans, answers)), False, unread, total)


def _holds_steps(row: Any, column: str | None) -> bool:
    """Whether there is something in the column of a row's own steps; a list without a text in it is nothing."""
    held = row.get(column) if isinstance(row, Mapping) else None
    if isinstance(held, (list, tuple)):
        return any(not isinstance(step, str) or step.strip() for step in held)
    return held is not None


def spans_of_steps(text: str, steps: Sequence[str]) -> list[CharSpan]:
    """Spans of steps that are known already, such as those of a column, found one after the other in `text`.

    White space at a step's ends does not count, and runs of it inside may differ. What precedes the first step belongs to
    it, what is between two to the one before. Such steps may cut thinking blocks, code and maths.

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
            loose = re.compile(r"\s+".join(map(re.escape, words.split()))).search(text, reached)
            if loose is None:
                where = f"behind step {number - 1}" if number > 1 else "at all"
                short = words if len(words) <= 60 else f"{words[:60]}..."
                raise RowError(
                    "steps_not_found",
                    f"step {number} of {len(steps)} does not stand in the answer {where}: {short!r}",
                )
            start, end = loose.span()
        starts.append(start)
        reached = end
    cuts = starts[1:]
    return list(zip([0, *cuts], [*cuts, len(text)], strict=True)) if starts or text.strip() else []


def join_steps(steps: Sequence[str], separator: str = "\n\n") -> str:
    """One text of steps that are known already. Blank steps are left out."""
    return separator.join(step for step in steps if step.strip())


def _total_of(row: Any) -> int | None:
    """The number in `TOTAL_COLUMN`: as JSON has it, or as a table writes it."""
    value = row.get(TOTAL_COLUMN) if isinstance(row, Mapping) else None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < len(str(_MOST)):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _MOST or value % 1:
        return None
    return int(value)


def names_steps(row: Any, column: str = STEPS_COLUMN) -> bool:
    """Whether a row says itself that its answer has several steps: it holds them, or their number."""
    own = row.get(column) if isinstance(row, Mapping) else None
    listed = isinstance(own, (list, tuple)) and len(own) > 1 and all(isinstance(step, str) for step in own)
    return listed or (_total_of(row) or 0) > 1


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
        separator: see `make_splitter`.
        column: the column that may hold a row's steps, for ``auto`` and `LISTED`.
        columns: the two columns that make a chat, None for the known names.
        splitter: the one that another data set of the run was settled on, in place of a choice of its own.

    Raises:
        ConfigError: an unknown splitter, or one that cannot be used.
        DataError: the source cannot be read.
    """
    if name == LISTED:
        return StepRules(make_splitter("separator"), column, True)
    rules = StepRules(splitter or make_splitter(name, separator), column)
    if name != "auto":
        return StepRules(make_splitter(name, separator))
    if splitter is not None:
        return rules
    first: list[tuple[str, int | None]] = []  # answers and how many steps they have
    without: list[tuple[str, int | None]] = []  # those of rows that do not hold their steps
    for _, row in islice(source, _SAMPLED_ROWS):
        try:
            messages = row_to_messages(row, None, columns)
        except RowError:
            continue
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        known = [*((answer, None) for answer in answers[:-1]), (answers[-1], _total_of(row))]
        first += known
        without += [] if steps_of(row, answers[-1:], rules).own else known
    return rules._replace(splitter=make_splitter(choose_splitter(without or first, separator), separator))
