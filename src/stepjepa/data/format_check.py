"""The format check: what a data file holds and whether its answers have steps, found out without a tokenizer.

It counts what can be seen in the text alone. Lengths in tokens, and with them what truncation takes away, are the data
report's business (`report.DataReport`), which the training run writes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from stepjepa.data.chat import RowError
from stepjepa.data.report import REASONS
from stepjepa.data.sources import RowSource, row_to_messages
from stepjepa.data.steps import StepSplitter, make_splitter
from stepjepa.errors import ConfigError, DataError

SHOWN_CHARACTERS = 400
_Chat = list[dict[str, str]]
_LONGEST_TABLE = 12  # numbers of steps listed one by one; more are put together
_MOST_KINDS = 5  # role orders listed
# What is tried beside the chosen splitter; the earlier one is named where two find about as many.
_CANDIDATES = ("separator", "numbered", "lines")


@dataclass(frozen=True)
class RowSample:
    """One row as it is shown.

    Attributes:
        place: where it stands.
        roles: of its messages, in order.
        user, answer: the first user's and the first assistant's text, `SHOWN_CHARACTERS` of it and "..." if longer.
        steps: steps of the first answer.
        separators: how often the separator (for ``lines`` a line break) stands in it; None for ``numbered``.
    """

    place: str
    roles: tuple[str, ...]
    user: str | None
    answer: str
    steps: int
    separators: int | None


@dataclass
class FormatReport:
    """What `check_format` found; every row read is counted once as usable or skipped.

    Attributes:
        source: file or data set.
        splitter, separator: how steps were looked for.
        rows_read, rows_usable: rows.
        rows_skipped: reason -> rows that cannot be trained on.
        first_skipped: reason -> place of the first such row and what is wrong with it.
        message_counts: messages in a row -> usable rows.
        role_orders: "system, user, assistant" -> usable rows.
        step_counts: steps -> usable rows; of a row with several answers the one with the most steps counts.
        rows_with_question: usable rows with a user's text before an answer's.
        pairs_first, pairs_all: pairs that ``step_pairs`` first and all would make.
        other_splitters: splitter -> usable rows in which it finds two or more steps.
        samples: the first usable rows.
    """

    source: str
    splitter: str
    separator: str
    rows_read: int = 0
    rows_usable: int = 0
    rows_skipped: Counter[str] = field(default_factory=Counter)
    first_skipped: dict[str, str] = field(default_factory=dict)
    message_counts: Counter[int] = field(default_factory=Counter)
    role_orders: Counter[str] = field(default_factory=Counter)
    step_counts: Counter[int] = field(default_factory=Counter)
    rows_with_question: int = 0
    pairs_first: int = 0
    pairs_all: int = 0
    other_splitters: dict[str, int] = field(default_factory=dict)
    samples: list[RowSample] = field(default_factory=list)

    @property
    def rows_with_steps(self) -> int:
        """Usable rows with an answer of two or more steps."""
        return sum(rows for steps, rows in self.step_counts.items() if steps >= 2)

    @property
    def better_splitter(self) -> str | None:
        """A splitter that serves the file better, where the chosen one finds steps in less than half of the rows."""
        most = max(self.other_splitters.values(), default=0)
        if 2 * self.rows_with_steps >= self.rows_usable or most <= self.rows_with_steps:
            return None
        return next(name for name, rows in self.other_splitters.items() if rows >= 0.9 * most)

    @property
    def verdict(self) -> str:
        """Whether the file serves ``step_jepa``, in one sentence."""
        found, usable = self.rows_with_steps, self.rows_usable
        better = self.better_splitter
        if better is not None:
            start = f"only {found:,} of {usable:,} rows have" if found else "no row has"
            other = f"{self.other_splitters[better]:,} of {usable:,} have"
            if better == self.splitter:  # the same splitter with its usual separator
                advice = f"with a blank line as separator {other}: leave out --step_separator"
            else:
                advice = f"with {better!r} {other}: use --step_splitter {better}"
            return f"{start} two steps with {self._chosen()}; {advice}"
        if not found:
            return "not for step_jepa: no row has two steps with any splitter; give --step_separator or another --objective"
        rest = f"; the other {usable - found:,} would train as plain language modelling" if found < usable else ""
        return f"ready for step_jepa: {found:,} of {usable:,} rows have two or more steps{rest}"

    def _chosen(self) -> str:
        if self.splitter == "separator" and self.separator != "\n\n":
            return f"splitter 'separator' ({escaped(self.separator)})"
        return f"splitter {self.splitter!r}"

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        record = {**vars(self), "samples": [asdict(sample) for sample in self.samples]}
        for name in ("message_counts", "step_counts", "rows_skipped", "role_orders"):
            record[name] = {str(key): rows for key, rows in sorted(record[name].items())}
        record |= {
            "rows_with_steps": self.rows_with_steps,
            "better_splitter": self.better_splitter,
            "ready_for_step_jepa": bool(self.rows_with_steps) and self.better_splitter is None,
            "verdict": self.verdict,
        }
        return record

    def skipped(self) -> list[str]:
        """Number of rows, reason and first place of each kind of row that cannot be used."""
        return [
            f"{rows:,}: {REASONS.get(reason, reason)} (first: {printable(self.first_skipped[reason])})"
            for reason, rows in self.rows_skipped.most_common()
        ]

    def lines(self) -> list[str]:
        """The report in words. What comes from the file is made `printable`."""
        skipped = sum(self.rows_skipped.values())
        lines = [
            f"Format check: {printable(self.source)}",
            f"  Rows: {self.rows_read:,} read, {self.rows_usable:,} usable, {skipped:,} skipped",
        ]
        lines += [f"    skipped {words}" for words in self.skipped()]
        lines.append("  Messages a row: " + _listed(self.message_counts))
        lines.append("  Roles: " + _listed(self.role_orders))
        for sample in self.samples:
            lines += ["", *self._sample_lines(sample)]
        lines += ["", f"Steps an answer with {self._chosen()}:", *self._table()]
        if self.rows_with_steps:
            lines.append(f"  Pairs: {self.pairs_first:,} (--step_pairs first), {self.pairs_all:,} (--step_pairs all)")
        asked = f"{self.rows_with_question:,} of {self.rows_usable:,} rows have a user message and an answer"
        lines += ["", f"Verdict: {self.verdict}", f"For llm_jepa: {asked}"]
        return lines

    def _sample_lines(self, sample: RowSample) -> list[str]:
        lines = [
            printable(sample.place),
            f"  Total messages: {len(sample.roles)}",
            f"  Roles: {', '.join(sample.roles)}",
        ]
        for name, text in (("User", sample.user), ("Assistant", sample.answer)):
            if text is not None:
                lines += ["", f"  {name} message (first {SHOWN_CHARACTERS} characters):", *_indented(text)]
        lines += ["", f"  Total steps: {sample.steps}"]
        if sample.separators is not None:
            plural = "" if sample.separators == 1 else "s"
            what = f"line break{plural}" if self.splitter == "lines" else f"step separator{plural}"
            lines.append(f"  The answer has {sample.separators} {what} ({escaped(self.separator)})")
            if sample.separators != sample.steps - 1:
                lines.append("  (several in a row count as one; at the end, in code and in display maths none counts)")
        return lines

    def _table(self) -> list[str]:
        counts: Counter[int] = Counter()
        for steps, rows in self.step_counts.items():
            counts[min(steps, _LONGEST_TABLE)] += rows
        most, lines = max(counts.values()), []
        for steps, rows in sorted(counts.items()):
            more = "+" if steps == _LONGEST_TABLE else " "
            bar = "#" * max(1, round(40 * rows / most))
            share = 100 * rows / self.rows_usable
            lines.append(f"  {steps:>3}{more} {rows:>9,} row{'s' if rows != 1 else ' '} {share:5.1f} %  {bar}")
        return lines


def check_format(
    source: Any,
    splitter: str = "separator",
    separator: str = "\\n\\n",
    *,
    show: int = 1,
    strict: bool = False,
    split: str = "train",
) -> FormatReport:
    r"""Read a whole data set and count its messages and steps.

    Args:
        source: what `RowSource` takes.
        splitter, separator: what `make_splitter` takes.
        show: how many usable rows to keep as samples.
        strict: a row that cannot be used is an error instead of a count.
        split: the split of a Hub data set.

    Raises:
        DataError: the source is missing, empty or broken, or has no usable row; with ``strict`` the first bad row.
        ConfigError: an unknown splitter, an empty separator, or a negative `show`.
    """
    if show < 0:
        raise ConfigError(f"show is {show}; give how many rows to show, 0 or more")
    chosen = make_splitter(splitter, separator)
    others = {name: other for name in _CANDIDATES if (other := make_splitter(name)) != chosen}
    rows = RowSource(source, split)
    separator = getattr(chosen, "separator", "\n")
    report = FormatReport(rows.name, splitter, separator, other_splitters=dict.fromkeys(others, 0))
    for number, row in rows:
        report.rows_read += 1
        try:
            messages = row_to_messages(row)
        except RowError as error:
            where = f"{rows.place(number)}: {error}"
            if strict:
                raise DataError(f"{printable(where)} (--strict_data stops at the first such row)") from None
            report.rows_skipped[error.reason] += 1
            report.first_skipped.setdefault(error.reason, where)
            continue
        _count(report, messages, chosen, others)
        if len(report.samples) < show:
            report.samples.append(_sample(rows.place(number), messages, chosen, report))
    if not report.rows_read:
        raise DataError(f"{rows.name}: the file or data set is empty; it needs at least one row")
    if not report.rows_usable:
        raise DataError(f"{rows.name}: none of {report.rows_read:,} rows can be used; {'; '.join(report.skipped())}")
    return report


def _count(report: FormatReport, messages: _Chat, chosen: StepSplitter, others: dict[str, StepSplitter]) -> None:
    report.rows_usable += 1
    report.message_counts[len(messages)] += 1
    report.role_orders[", ".join(message["role"] for message in messages)] += 1
    answers = [message["content"] for message in messages if message["role"] == "assistant"]
    steps = [len(chosen.spans(answer)) for answer in answers]
    report.step_counts[max(steps)] += 1
    report.pairs_first += sum(count >= 2 for count in steps)
    report.pairs_all += sum(max(count - 1, 0) for count in steps)
    for name, other in others.items():
        report.other_splitters[name] += any(len(other.spans(answer)) >= 2 for answer in answers)
    asked = False
    for message in messages:
        filled = bool(message["content"].strip())
        if message["role"] == "assistant" and asked and filled:
            report.rows_with_question += 1
            break
        asked = filled if message["role"] == "user" else asked


def _sample(place: str, messages: _Chat, chosen: StepSplitter, report: FormatReport) -> RowSample:
    user = next((message["content"] for message in messages if message["role"] == "user"), None)
    answer = next(message["content"] for message in messages if message["role"] == "assistant")
    separators = None
    if report.splitter != "numbered":
        # A blank line is one in files with Windows line ends too.
        separators = (answer if report.separator.strip("\n") else answer.replace("\r\n", "\n")).count(report.separator)
    return RowSample(
        place=place,
        roles=tuple(message["role"] for message in messages),
        user=None if user is None else _cut(user),
        answer=_cut(answer),
        steps=len(chosen.spans(answer)),
        separators=separators,
    )


def printable(text: str) -> str:
    r"""`text` with everything that a terminal could act on, or could not write, as an escape (``\x1b``, ``\u202e``).

    Line breaks, letters, punctuation and emoji stay.
    """
    return "\n".join(escaped(line) for line in text.split("\n"))


def escaped(text: str) -> str:
    r"""`text` on one line, line breaks and all that is not printable as escapes (``\n``, ``\x1b``)."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _indented(text: str) -> list[str]:
    return [f"    {line}".rstrip() for line in printable(text.replace("\r\n", "\n").expandtabs(4)).split("\n")]


def _listed(counts: Counter[Any]) -> str:
    parts = [f"{key} ({rows:,} row{'s' * (rows != 1)})" for key, rows in counts.most_common(_MOST_KINDS)]
    more = len(counts) - _MOST_KINDS
    return "; ".join(parts) + (f"; and {more:,} other kinds" if more > 0 else "")
