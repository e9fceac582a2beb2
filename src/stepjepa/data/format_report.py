"""What the format check found (`format_check`), as a record and in words."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from stepjepa.data.report import REASONS, StepCounts, listed_files
from stepjepa.data.signs import Leak, Repeats, Signs
from stepjepa.utils.text import escaped, printable

SHOWN_CHARACTERS = 400
_LONGEST_TABLE = 12  # numbers of steps listed one by one; more are put together
_MOST_KINDS = 5  # role orders listed
_SERVES = 0.1  # a splitter that finds steps in a smaller share of the rows is not advised
NEEDS_CHATS = (
    "plain text: train with --objective split or regular; other objectives need chats (messages, question/answer, "
    "prompt/completion, text/code, or any two columns with --source_column and --target_column)"
)


@dataclass(frozen=True)
class RowSample:
    """One row as it is shown.

    Attributes:
        place: where it stands.
        roles: of its messages, in order; () for plain text.
        user, answer: the first user's and the first assistant's text, `SHOWN_CHARACTERS` of it and "..." if longer; the
            text of a row of plain text is its `answer`.
        steps: steps of the first answer.
        separators: how often the separator (for ``lines`` a line break) stands in it; None for other splitters.
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
        files: of a folder, those that are read.
        splitter, separator: how steps were looked for.
        plain_text: whether the first row, and with it the data set, is plain text and no chat.
        rows_read, rows_usable: rows.
        rows_skipped: reason -> rows that cannot be trained on.
        first_skipped: reason -> place of the first such row and what is wrong with it.
        skipped_texts: reason -> how that row begins.
        message_counts: messages in a row -> usable chats.
        role_orders: "system, user, assistant" -> usable chats.
        step_counts: steps -> usable chats; of a row with several answers the one with the most steps counts.
        rows_with_question: usable chats with a user's text before an answer's.
        pairs_first, pairs_all: pairs that ``step_pairs`` first and all would make.
        other_splitters: splitter -> usable chats in which it finds two or more steps; sentences are looked for only where
            no other one finds any.
        auto_rows: usable chats without steps in which a splitter that decides for each answer by itself finds two or more;
            `first_auto` is the place of the first.
        text_rows, id_rows: usable rows of text, and of token ids.
        characters, ids: how much they hold.
        steps: where they come from.
        signs, repeats, leak: what `warnings` warns of; `leak` is None without an evaluation file.
        samples: the first usable rows.
    """

    source: str
    splitter: str
    separator: str
    files: list[str] = field(default_factory=list)
    plain_text: bool = False
    rows_read: int = 0
    rows_usable: int = 0
    rows_skipped: Counter[str] = field(default_factory=Counter)
    first_skipped: dict[str, str] = field(default_factory=dict)
    skipped_texts: dict[str, str] = field(default_factory=dict)
    message_counts: Counter[int] = field(default_factory=Counter)
    role_orders: Counter[str] = field(default_factory=Counter)
    step_counts: Counter[int] = field(default_factory=Counter)
    rows_with_question: int = 0
    pairs_first: int = 0
    pairs_all: int = 0
    other_splitters: dict[str, int] = field(default_factory=dict)
    auto_rows: int = 0
    first_auto: str = ""
    text_rows: int = 0
    id_rows: int = 0
    characters: int = 0
    ids: int = 0
    steps: StepCounts = field(default_factory=StepCounts)
    signs: Signs = field(default_factory=Signs)
    repeats: Repeats = field(default_factory=Repeats)
    leak: Leak | None = None
    samples: list[RowSample] = field(default_factory=list)

    @property
    def chats(self) -> int:
        """Usable rows that are chats."""
        return self.rows_usable - self.text_rows - self.id_rows

    @property
    def rows_with_steps(self) -> int:
        """Usable chats with an answer of two or more steps."""
        return sum(rows for steps, rows in self.step_counts.items() if steps >= 2)

    @property
    def better_splitter(self) -> str | None:
        """A splitter that serves the file better, where the chosen one finds steps in less than half of the chats.

        Sentences are advised only where nothing else finds steps.
        """
        others, least = dict(self.other_splitters), max(_SERVES * self.chats, 1)
        sentences = others.pop("sentence", 0)
        most = max(others.values(), default=0)
        if 2 * self.rows_with_steps >= self.chats:
            return None
        if most > self.rows_with_steps and most >= least:
            return next(name for name, rows in others.items() if rows >= 0.9 * most)
        return "sentence" if self.rows_with_steps < least and 2 * sentences > self.chats else None

    @property
    def by_answer(self) -> int | None:
        """Chats with steps, where those that the chosen splitter leaves whole are cut by one that decides for each answer;
        None unless that is at least one in a hundred more than with the chosen and with the better splitter."""
        most = max(self.rows_with_steps, self.other_splitters.get(self.better_splitter or "", 0))
        found = self.rows_with_steps + self.auto_rows
        return found if found - most >= max(0.01 * self.chats, 1) else None

    @property
    def ready(self) -> bool:
        """Whether the file serves ``step_jepa`` as it is read."""
        enough = self.rows_with_steps >= max(_SERVES * self.chats, 1)
        return enough and self.better_splitter is None and not self.plain_text

    @property
    def verdict(self) -> str:
        """What the file serves for, in one sentence."""
        if self.plain_text:
            return NEEDS_CHATS
        found, usable = self.rows_with_steps, self.chats
        better = self.better_splitter
        if better is not None:
            start = f"only {found:,} of {usable:,} rows have" if found else "no row has"
            other = f"{self.other_splitters[better]:,} of {usable:,} have"
            if better == self.splitter:  # the same splitter with its usual separator
                advice = f"with a blank line as separator {other}: leave out --step_separator"
            else:
                advice = f"with {better!r} {other}: use --step_splitter {better}"
            return f"{start} two steps with {self.chosen()}; {advice}"
        if not found:
            return "not for step_jepa: no row has two steps with any splitter; give --step_separator or another --objective"
        if not self.ready:
            few = f"only {found:,} of {usable:,} rows have two steps, and no splitter finds them in more"
            return f"hardly for step_jepa: {few}; give --step_separator or another --objective"
        rest = f"; the other {usable - found:,} would train as plain language modelling" if found < usable else ""
        return f"ready for step_jepa: {found:,} of {usable:,} rows have two or more steps{rest}"

    def chosen(self) -> str:
        """How steps were looked for, in words."""
        if self.steps.own and self.splitter != "list":
            rest = f", else {self._splitter_in_words()}" if self.steps.own < self.steps.rows else ""
            return f"the rows' own steps{rest}"
        return self._splitter_in_words()

    def _splitter_in_words(self) -> str:
        if self.splitter == "regex" or (self.splitter == "separator" and self.separator != "\n\n"):
            return f"splitter {self.splitter!r} ({escaped(self.separator)})"
        return "splitter 'auto' (for each answer)" if self.splitter == "auto" else f"splitter {self.splitter!r}"

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        record = {**vars(self), "samples": [asdict(sample) for sample in self.samples]}
        for name in ("message_counts", "step_counts", "rows_skipped", "role_orders"):
            record[name] = {str(key): rows for key, rows in sorted(record[name].items())}
        record |= {
            "steps": self.steps.to_dict(),
            "signs": asdict(self.signs),
            "repeats": self.repeats.to_dict(),
            "leak": None if self.leak is None else asdict(self.leak),
            "rows_with_steps": self.rows_with_steps,
            "better_splitter": self.better_splitter,
            "ready_for_step_jepa": self.ready,
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
        """The report in words, one fact a line. What comes from the file is made `printable`."""
        skipped = sum(self.rows_skipped.values())
        lines = [
            f"Format check: {printable(self.source)}",
            f"  Rows: {self.rows_read:,} read, {self.rows_usable:,} usable, {skipped:,} skipped",
        ]
        if self.files:
            lines.insert(1, f"  Files: {listed_files(self.files)}")
        for reason, words in zip(dict(self.rows_skipped.most_common()), self.skipped(), strict=True):
            lines.append(f"    skipped {words}")
            if self.skipped_texts.get(reason):
                lines.append(f"      the row begins: {escaped(self.skipped_texts[reason])}")
        if self.text_rows:
            lines.append(f"  Plain text: {counted(self.text_rows, 'row')}, {counted(self.characters, 'character')}")
        if self.id_rows:
            lines.append(f"  Token ids: {counted(self.id_rows, 'row')}, {counted(self.ids, 'id')}")
        if self.chats:
            lines.append("  Messages a row: " + _listed(self.message_counts))
            lines.append("  Roles: " + _listed(self.role_orders))
        for sample in self.samples:
            lines += ["", *self._sample_lines(sample)]
        if self.chats and not self.plain_text:
            lines += ["", f"Steps an answer with {self.chosen()}:", *self._table()]
            if self.rows_with_steps:
                lines.append(
                    f"  Pairs: {self.pairs_first:,} (--step_pairs first), {self.pairs_all:,} (--step_pairs all)"
                )
        lines += ["", f"Verdict: {self.verdict}"]
        if self.by_answer is not None:
            lines.append(
                f"  {counted(self.auto_rows, 'row')} with steps in another style (first: "
                f"{short_place(self.first_auto, self.source)}). With the splitter that serves each answer, "
                f"{self.by_answer:,} of {self.chats:,} rows have two or more: stepjepa prepare takes it, and writes the "
                "steps with blank lines between them"
            )
        if not self.plain_text:
            asked = f"{self.rows_with_question:,} of {self.chats:,} rows have a user message and an answer"
            lines.append(f"For llm_jepa: {asked}")
        return lines

    def _sample_lines(self, sample: RowSample) -> list[str]:
        if not sample.roles:
            return [
                printable(sample.place),
                f"  Text (first {SHOWN_CHARACTERS} characters):",
                *_indented(sample.answer),
            ]
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
            share = 100 * rows / self.chats
            lines.append(f"  {steps:>3}{more} {rows:>9,} row{'s' if rows != 1 else ' '} {share:5.1f} %  {bar}")
        return lines


def counted(number: int, word: str) -> str:
    """``1 row``, ``2,000 rows``."""
    return f"{number:,} {word}{'s' * (number != 1)}"


def short_place(place: str, source: str) -> str:
    """``line 7`` of ``data.jsonl line 7``, printable."""
    return printable(place.removeprefix(f"{source} "))


def _indented(text: str) -> list[str]:
    return [f"    {line}".rstrip() for line in printable(text.replace("\r\n", "\n").expandtabs(4)).split("\n")]


def _listed(counts: Counter[Any]) -> str:
    parts = [f"{key} ({counted(rows, 'row')})" for key, rows in counts.most_common(_MOST_KINDS)]
    more = len(counts) - _MOST_KINDS
    return "; ".join(parts) + (f"; and {more:,} other kinds" if more > 0 else "")
