"""The steps of a row: those that it holds itself, else those that a splitter finds in its answers.

A row may hold its steps in a column (`STEPS_COLUMN`, as `stepjepa prepare` writes it): a list of texts that are in its last
answer one after the other. What precedes the first one belongs to it, what follows a step to that step, so that spans cover
the answer. `TOTAL_COLUMN` may say how many steps that answer has; it decides nothing about the row, and a number that is not
the one found is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from stepjepa.data.sources import PairColumns, listed_steps, row_to_messages
from stepjepa.data.steps.auto import StepSplitter, choose_splitter, make_splitter
from stepjepa.data.steps.plain import spans_of_steps
from stepjepa.data.steps.uncut import CharSpan
from stepjepa.errors import DataError, RowError

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
        return LISTED if self.column is not None and self.required else self.splitter.name


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
    total = _total_of(row)
    if rules.required:
        return RowSteps([*([] for _ in answers[1:]), _own_spans(row, rules, answers[-1])], True, None, total)
    unread = None
    if _holds_steps(row, rules):
        try:
            # They are those of the last answer; the row says nothing about others.
            before = [rules.splitter.spans(answer) for answer in answers[:-1]]
            return RowSteps([*before, _own_spans(row, rules, answers[-1])], True, None, total)
        except RowError as error:
            unread = error.reason, str(error)
    return RowSteps([rules.splitter.spans(answer) for answer in answers], False, unread, total)


def _holds_steps(row: Any, rules: StepRules) -> bool:
    """Whether there is something in the column of a row's own steps; a list without a text in it is nothing."""
    held = row.get(rules.column) if isinstance(row, Mapping) else None
    if isinstance(held, (list, tuple)):
        return any(not isinstance(step, str) or step.strip() for step in held)
    return held is not None


def _own_spans(row: Any, rules: StepRules, answer: str) -> list[CharSpan]:
    """Spans of the steps that a row holds.

    Raises:
        RowError: it holds no list of texts, or they do not stand in the answer.
    """
    try:
        return spans_of_steps(answer, listed_steps(row, str(rules.column)))
    except RowError:
        raise
    except DataError as error:
        raise RowError("steps_not_found", str(error)) from None


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
    if name != "auto":
        return StepRules(make_splitter(name, separator))
    rules = StepRules(splitter or make_splitter(name, separator), column)
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
        without += [] if _is_own(row, rules, answers[-1]) else known
    return rules._replace(splitter=make_splitter(choose_splitter(without or first, separator), separator))


def _is_own(row: Any, rules: StepRules, answer: str) -> bool:
    try:
        return _holds_steps(row, rules) and bool(_own_spans(row, rules, answer))
    except RowError:
        return False
