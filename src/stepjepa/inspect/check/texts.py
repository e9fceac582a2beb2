"""Statistics of a data set's text: what its rows hold and whether its answers have steps, without a tokenizer.

`reader` counts them. What a tokenizer makes of the data set is in `tokens`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from stepjepa.config.option import Names
from stepjepa.data.chat import KNOWN_CHATS
from stepjepa.data.prepare.rows import question_key
from stepjepa.data.report import RowCounts, StepCounts, listed_files
from stepjepa.data.sources import RowSource
from stepjepa.objectives.base import built_in
from stepjepa.training.options import ExampleOptions
from stepjepa.utils.text import counted, escaped, printable

SHOWN_CHARACTERS = 400
_LONGEST_TABLE = 12  # numbers of steps listed one by one; more are put together
_BAR = 40  # characters of the longest bar of the table
_MOST_KINDS = 5  # role orders listed
_SERVES = 0.1  # steps in a smaller share of the rows are not enough for step_jepa
_NAME = Names(ExampleOptions)


@dataclass(frozen=True)
class RowSample:
    """One row as it is shown.

    Attributes:
        place: of the row.
        roles: of its messages, in order; () for plain text.
        texts: "User", "Assistant" -> the first such text, "Text" -> that of plain text; 400 characters of it.
        steps: steps of the first answer.
    """

    place: str
    roles: tuple[str, ...]
    texts: dict[str, str]
    steps: int = 0

    def lines(self) -> list[str]:
        """The sample as it is printed."""
        lines = [printable(self.place)]
        if self.roles:
            lines += [f"  Roles: {', '.join(self.roles)}", f"  Total steps: {self.steps}"]
        for name, text in self.texts.items():
            lines += ["", f"  {name} (first {SHOWN_CHARACTERS} characters):"]
            shown = printable(text.replace("\r\n", "\n").expandtabs(4))
            lines += [f"    {line}".rstrip() for line in shown.split("\n")]
        return lines


@dataclass
class Repeats:
    """Rows that ask what an earlier row asks (`prepare.rows.question_key`: letter case and white space aside).

    Attributes:
        rows: such rows.
        first: places of the first such row and of the one that it repeats; () where there is none.
    """

    rows: int = 0
    first: tuple[str, ...] = ()
    _questions: dict[int, int] = field(default_factory=dict, repr=False)  # hash -> number of the first row

    def count(self, rows: RowSource, number: int, key: int) -> None:
        """Count row `number` of `rows`, whose question has the hash `key`."""
        earlier = self._questions.setdefault(key, number)
        if earlier != number:
            self.rows += 1
            self.first = self.first or (rows.place(earlier), rows.place(number))

    def find(self, question: str) -> int | None:
        """The number of the first row with this question, None if there is none."""
        key = hashed_question(question)
        return None if key is None else self._questions.get(key)

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        return {"rows": self.rows, "first": self.first}


def hashed_question(question: str) -> int | None:
    """The hash by which questions are compared; None for a blank one, which is no question."""
    return question_key(question) if question.strip() else None


@dataclass
class Leak(RowCounts):
    """Rows of an evaluation file whose question is in the training file.

    Attributes:
        rows: that were compared; the others cannot be used.
        found: rows with a question of the training file.
        first: place of the first such row, and of the training row; () where there is none.
    """

    rows: int = 0
    found: int = 0
    first: tuple[str, ...] = ()


@dataclass
class TextStatistics(RowCounts):
    """What the rows of a data set hold; every row read is counted once as usable or skipped.

    Attributes:
        splitter, separator: how steps were looked for; no separator where the splitter reads none.
        files: of a folder, those that are read.
        plain_text: whether the first row, and with it the data set, is plain text and no chat.
        rows_usable: rows that can be trained on.
        role_orders: "system, user, assistant" -> usable chats.
        step_counts: steps -> usable chats; of a row with several answers the one with the most steps counts.
        rows_with_question: usable chats with a text of the user.
        pairs_first, pairs_all: pairs that ``step_pairs`` first and all would make.
        other_splitters: the splitter that ``auto`` chooses for the data set, where it is another one -> usable chats in
            which it finds two or more steps.
        streams: "Plain text", "Token ids" -> usable rows that are no chats.
        steps: where the steps come from.
        repeats: rows with the question of an earlier one.
        leak: rows of the evaluation file with a question of this one; None without such a file.
        samples: the first usable rows.
    """

    splitter: str
    separator: str
    files: list[str] = field(default_factory=list)
    plain_text: bool = False
    rows_usable: int = 0
    role_orders: Counter[str] = field(default_factory=Counter)
    step_counts: Counter[int] = field(default_factory=Counter)
    rows_with_question: int = 0
    pairs_first: int = 0
    pairs_all: int = 0
    other_splitters: Counter[str] = field(default_factory=Counter)
    streams: Counter[str] = field(default_factory=Counter)
    steps: StepCounts = field(default_factory=StepCounts)
    repeats: Repeats = field(default_factory=Repeats)
    leak: Leak | None = None
    samples: list[RowSample] = field(default_factory=list)

    @property
    def chats(self) -> int:
        """Usable rows that are chats."""
        return self.rows_usable - self.streams.total()

    @property
    def rows_with_steps(self) -> int:
        """Usable chats with an answer of two or more steps."""
        return sum(rows for steps, rows in self.step_counts.items() if steps >= 2)

    @property
    def better_splitter(self) -> str | None:
        """The splitter that ``auto`` chooses, where the chosen one finds steps in less than half of the chats, and fewer."""
        if 2 * self.rows_with_steps >= self.chats:
            return None
        return next((name for name, rows in self.other_splitters.items() if rows > self.rows_with_steps), None)

    @property
    def remedy(self) -> str:
        """What to do where few answers have two steps."""
        better = self.better_splitter
        if better is None:
            return f"give --{_NAME.step_separator}, or train with --{_NAME.objective} llm_jepa, which needs no steps"
        use = f"use --{_NAME.step_splitter} {better}"
        if better == self.splitter:
            use = f"leave out --{_NAME.step_separator}"
        return f"{use}: the splitter that auto chooses, {better}, finds them in {self.other_splitters[better]:,}"

    @property
    def ready(self) -> bool:
        """Whether the file serves ``step_jepa`` as it is read."""
        enough = self.rows_with_steps >= max(_SERVES * self.chats, 1)
        return enough and self.better_splitter is None and not self.plain_text

    @property
    def verdict(self) -> str:
        """What the file serves for, in one sentence."""
        if self.plain_text:
            names = " or ".join(name for name, cls in built_in().items() if cls.takes_text)
            return f"plain text: train with --{_NAME.objective} {names}; the others need chats ({KNOWN_CHATS})"
        rows, chats = self.rows_with_steps, self.chats
        if self.ready:
            verdict = f"ready for step_jepa: {rows:,} of {chats:,} rows have two or more steps"
            if rows < chats:
                verdict += f"; the other {chats - rows:,} would train as plain language modelling"
            return verdict
        few = f"only {rows:,} of {chats:,} rows have" if rows else "no row has"
        return f"not for step_jepa: {few} two steps ({self.found_by}); {self.remedy}"

    @property
    def found_by(self) -> str:
        """Where steps come from, with a separator of the user's own."""
        if self.separator in ("", "\n\n") or self.steps.own:
            return self.steps.words
        return f"{self.steps.words} {escaped(self.separator)}"

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        record = super().to_dict()
        record["step_counts"] = {str(steps): rows for steps, rows in sorted(self.step_counts.items())}
        record["samples"] = [asdict(sample) for sample in self.samples]
        record["repeats"] = self.repeats.to_dict()
        for name in ("rows_with_steps", "better_splitter", "verdict"):
            record[name] = getattr(self, name)
        record["ready_for_step_jepa"] = self.ready
        return record

    def lines(self) -> list[str]:
        """The statistics, one fact a line. What comes from the file is made `printable`."""
        lines = [f"Format check: {printable(self.source)}"]
        if self.files:
            lines.append(f"  Files: {listed_files(self.files)}")
        skipped = self.rows_skipped.total()
        lines.append(f"  Rows: {self.rows_read:,} read, {self.rows_usable:,} usable, {skipped:,} skipped")
        lines += [f"    {printable(line)}" for line in self.skipped_lines()]
        lines += [f"  {line}" for line in self.other_lines()]
        lines += [f"  {name}: {counted(rows, 'row')}" for name, rows in self.streams.items()]
        if self.chats:
            lines.append(f"  Roles: {_listed(self.role_orders)}")
        for sample in self.samples:
            lines += ["", *sample.lines()]
        if self.chats and not self.plain_text:
            lines += ["", f"Steps an answer ({self.found_by}):", *self._table()]
            first, every = f"--{_NAME.step_pairs} first", f"--{_NAME.step_pairs} all"
            lines.append(f"  Pairs: {self.pairs_first:,} ({first}), {self.pairs_all:,} ({every})")
        lines += ["", f"Verdict: {self.verdict}"]
        if not self.plain_text:
            lines.append(f"For llm_jepa: {self.rows_with_question:,} of {self.chats:,} rows have a user message")
        return lines

    def _table(self) -> list[str]:
        """A line with a bar for each number of steps."""
        counts: Counter[int] = Counter()
        for steps, rows in self.step_counts.items():
            counts[min(steps, _LONGEST_TABLE)] += rows
        most, lines = max(counts.values()), []
        for steps, rows in sorted(counts.items()):
            more = "+" if steps == _LONGEST_TABLE else " "
            share = 100 * rows / self.chats
            length = round(_BAR * rows / most)
            bar = "#" * max(1, length)
            noun = "row " if rows == 1 else "rows"
            lines.append(f"  {steps:>3}{more} {rows:>9,} {noun} {share:5.1f} %  {bar}")
        return lines


def _listed(counts: Counter[str]) -> str:
    parts = [f"{key} ({counted(rows, 'row')})" for key, rows in counts.most_common(_MOST_KINDS)]
    more = len(counts) - _MOST_KINDS
    if more > 0:
        parts.append(f"and {more:,} other kinds")
    return "; ".join(parts)
