"""Statistics of a data set's text: what its rows hold and whether its answers have steps, without a tokenizer.

What a tokenizer makes of it is in `tokens`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from stepjepa.config.option import Names
from stepjepa.data.chat import KNOWN_CHATS, row_to_messages
from stepjepa.data.encode import EncodeOptions, chat_of
from stepjepa.data.options import PairColumns, is_stream
from stepjepa.data.prepare.rows import question_of
from stepjepa.data.report import REASONS, StepCounts, listed_files
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import rules_for, steps_of
from stepjepa.data.tokens import stream_content
from stepjepa.errors import DataError, RowError, no_rows
from stepjepa.inspect.check.quality import Leak, QualityCounts, Repeats
from stepjepa.objectives.base import built_in
from stepjepa.training.options import ExampleOptions, JEPAOptions
from stepjepa.utils.text import counted, escaped, printable

_SHOWN_CHARACTERS = 400
_EXCERPT = 160  # characters of a row that is skipped
_LONGEST_TABLE = 12  # numbers of steps listed one by one; more are put together
_MOST_KINDS = 5  # role orders listed
_SERVES = 0.1  # steps in a smaller share of the rows are not enough for step_jepa
_NAME = Names(ExampleOptions)
_Shown = Callable[[], "RowSample"]  # how a row is shown, made for those that are


@dataclass(frozen=True)
class RowSample:
    """One row as it is shown.

    Attributes:
        place: of the row.
        roles: of its messages, in order; () for plain text.
        user, answer: the first user's and the first assistant's text, 400 characters of it; the text of a row of plain text
            is its `answer`.
        steps: steps of the first answer.
    """

    place: str
    roles: tuple[str, ...]
    user: str | None
    answer: str
    steps: int

    def lines(self) -> list[str]:
        """The sample as it is printed."""
        first, place = f"(first {_SHOWN_CHARACTERS} characters):", printable(self.place)
        if not self.roles:
            return [place, f"  Text {first}", *_indented(self.answer)]
        lines = [place, f"  Total messages: {len(self.roles)}", f"  Roles: {', '.join(self.roles)}"]
        for name, text in (("User", self.user), ("Assistant", self.answer)):
            if text is not None:
                lines += ["", f"  {name} message {first}", *_indented(text)]
        return [*lines, "", f"  Total steps: {self.steps}"]


@dataclass
class TextStatistics:
    """What the rows of a data set hold; every row read is counted once as usable or skipped.

    Attributes:
        source: file or data set.
        splitter, separator: how steps were looked for.
        files: of a folder, those that are read.
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
        other_splitters: the splitter that ``auto`` chooses for the data set, where it is another one -> usable chats in
            which it finds two or more steps.
        text_rows, id_rows: usable rows of text, and of token ids; `characters`, `ids`: how much they hold.
        steps: where the steps come from.
        signs, repeats, leak: counts that warnings are made of; `leak` is None without an evaluation file.
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
    text_rows: int = 0
    id_rows: int = 0
    characters: int = 0
    ids: int = 0
    steps: StepCounts = field(default_factory=StepCounts)
    signs: QualityCounts = field(default_factory=QualityCounts)
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
        """The splitter that ``auto`` chooses, where the chosen one finds steps in less than half of the chats, and fewer."""
        if 2 * self.rows_with_steps >= self.chats:
            return None
        return next((name for name, rows in self.other_splitters.items() if rows > self.rows_with_steps), None)

    @property
    def use_better(self) -> str:
        """How to have the better splitter."""
        better = self.better_splitter
        use, leave_out = f"use --{_NAME.step_splitter} {better}", f"leave out --{_NAME.step_separator}"
        return use if better != self.splitter else leave_out

    @property
    def ready(self) -> bool:
        """Whether the file serves ``step_jepa`` as it is read."""
        enough = self.rows_with_steps >= max(_SERVES * self.chats, 1)
        return enough and self.better_splitter is None and not self.plain_text

    @property
    def verdict(self) -> str:
        """What the file serves for, in one sentence."""
        found, usable, better = self.rows_with_steps, self.chats, self.better_splitter
        none = f"{f'only {found:,} of {usable:,} rows have' if found else 'no row has'} two steps ({self.found_by})"
        if self.plain_text:
            names = " or ".join(name for name, cls in built_in().items() if cls.takes_text)
            return f"plain text: train with --{_NAME.objective} {names}; the others need chats ({KNOWN_CHATS})"
        if better is not None:
            served = f"finds them in {self.other_splitters[better]:,}: {self.use_better}"
            return f"{none}; the splitter that auto chooses, {better}, {served}"
        if not self.ready:
            return f"not for step_jepa: {none}; give --{_NAME.step_separator} or another --{_NAME.objective}"
        rest = f"; the other {usable - found:,} would train as plain language modelling" if found < usable else ""
        return f"ready for step_jepa: {found:,} of {usable:,} rows have two or more steps{rest}"

    @property
    def found_by(self) -> str:
        """Where steps come from, with a separator of one's own."""
        given = self.splitter in ("separator", "regex") and self.separator != "\n\n" and not self.steps.own
        return f"{self.steps.words} {escaped(self.separator)}" if given else self.steps.words

    @property
    def plain_separator(self) -> str:
        """Where a plain split would cut."""
        return self.separator if self.splitter in ("separator", "lines") else "\n\n"

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        counters = {name: value for name, value in vars(self).items() if isinstance(value, Counter)}
        return {
            **vars(self),
            **{name: {str(key): rows for key, rows in sorted(value.items())} for name, value in counters.items()},
            "samples": [asdict(sample) for sample in self.samples],
            "steps": self.steps.to_dict(),
            "signs": asdict(self.signs),
            "repeats": self.repeats.to_dict(),
            "leak": None if self.leak is None else asdict(self.leak),
            "rows_with_steps": self.rows_with_steps,
            "better_splitter": self.better_splitter,
            "ready_for_step_jepa": self.ready,
            "verdict": self.verdict,
        }

    def skipped(self) -> dict[str, str]:
        """Reason -> number of rows, reason and first place of each kind of row that cannot be used."""
        return {
            reason: f"{rows:,}: {REASONS.get(reason, reason)} (first: {printable(self.first_skipped[reason])})"
            for reason, rows in self.rows_skipped.most_common()
        }

    def lines(self) -> list[str]:
        """The statistics, one fact a line. What comes from the file is made `printable`."""
        skipped = sum(self.rows_skipped.values())
        lines = [f"Format check: {printable(self.source)}"]
        lines += [f"  Files: {listed_files(self.files)}"] if self.files else []
        lines.append(f"  Rows: {self.rows_read:,} read, {self.rows_usable:,} usable, {skipped:,} skipped")
        for reason, line in self.skipped().items():
            lines += [f"    skipped {line}", f"      the row begins: {escaped(self.skipped_texts[reason])}"]
        if self.text_rows:
            lines.append(f"  Plain text: {counted(self.text_rows, 'row')}, {counted(self.characters, 'character')}")
        if self.id_rows:
            lines.append(f"  Token ids: {counted(self.id_rows, 'row')}, {counted(self.ids, 'id')}")
        if self.chats:
            lines += [f"  Messages a row: {_listed(self.message_counts)}", f"  Roles: {_listed(self.role_orders)}"]
        for sample in self.samples:
            lines += ["", *sample.lines()]
        if self.chats and not self.plain_text:
            lines += ["", f"Steps an answer ({self.found_by}):", *self._table()]
            if self.rows_with_steps:
                first, every = (f"--{_NAME.step_pairs} {which}" for which in ("first", "all"))
                lines.append(f"  Pairs: {self.pairs_first:,} ({first}), {self.pairs_all:,} ({every})")
        lines += ["", f"Verdict: {self.verdict}"]
        if not self.plain_text:
            asked = f"{self.rows_with_question:,} of {self.chats:,} rows have a user message and an answer"
            lines.append(f"For llm_jepa: {asked}")
        return lines

    def _table(self) -> list[str]:
        counts: Counter[int] = Counter()
        for steps, rows in self.step_counts.items():
            counts[min(steps, _LONGEST_TABLE)] += rows
        most, lines = max(counts.values()), []
        for steps, rows in sorted(counts.items()):
            more, plural = "+" if steps == _LONGEST_TABLE else " ", "s" if rows != 1 else " "
            share, bar = 100 * rows / self.chats, "#" * max(1, round(40 * rows / most))
            lines.append(f"  {steps:>3}{more} {rows:>9,} row{plural} {share:5.1f} %  {bar}")
        return lines


def _indented(text: str) -> list[str]:
    return [f"    {line}".rstrip() for line in printable(text.replace("\r\n", "\n").expandtabs(4)).split("\n")]


def _listed(counts: Counter[Any]) -> str:
    parts = [f"{key} ({counted(rows, 'row')})" for key, rows in counts.most_common(_MOST_KINDS)]
    more = len(counts) - _MOST_KINDS
    return "; ".join(parts) + (f"; and {more:,} other kinds" if more > 0 else "")


class TextReader:
    """The numbered rows of a data set, which are counted while they are read: messages, steps and what there is to warn of.

    As in training, the first row decides whether the data set is one of chats or of plain text.

    Args:
        method: how rows become chats, and how their steps are found.
        show: how many usable rows to keep as samples.

    Attributes:
        found: the statistics of what has been read.

    Raises:
        DataError: a source is missing or empty; while it is read, broken or without a usable row, or with ``strict_data`` at
            the first bad row.
        ConfigError: an unknown splitter, or an empty separator.
    """

    def __init__(self, rows: RowSource, method: JEPAOptions, show: int = 1):
        columns = method.columns
        rules = rules_for(rows, method.step_splitter, method.step_separator, method.steps_column, columns)
        self._rows, self._show = rows, show
        self._usual = rules_for(rows, "auto", column=method.steps_column, columns=columns).splitter
        self._options = EncodeOptions.of(method, rules=rules)
        separator = rules.splitter.separator if rules.splitter.reads_separator and not rules.required else "\n"
        others = {self._usual.name: 0} if rules.required or self._usual != rules.splitter else {}
        self.found = TextStatistics(
            rows.name,
            rules.name,
            separator,
            rows.files,
            plain_text=columns is None and is_stream(next((row for _, row in rows), None)),
            other_splitters=others,
            steps=StepCounts.of(rules),
        )

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        found, rows = self.found, self._rows
        for number, row in rows:
            found.rows_read += 1
            try:
                sample = self._count(number, row)
            except RowError as error:
                where = f"{rows.place(number)}: {error}"
                if self._options.strict_data:
                    message = f"{printable(where)} (--{_NAME.strict_data} stops at the first such row)"
                    raise DataError(message) from None
                found.rows_skipped[error.reason] += 1
                found.first_skipped.setdefault(error.reason, where)
                found.skipped_texts.setdefault(error.reason, excerpt(row))
            else:
                found.rows_usable += 1
                found.samples += [sample()] if len(found.samples) < self._show else []
            yield number, row
        _need_rows(rows, found.rows_read, found.rows_usable, found.skipped().values())

    def _count(self, number: int, row: Any) -> _Shown:
        """Count a row; how it is shown. RowError if it cannot be used."""
        found, rows = self.found, self._rows
        if found.plain_text and is_stream(row):
            return _count_stream(found, rows, number, row)
        messages, place = chat_of(row, self._options), rows.place(number)
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        steps = steps_of(row, answers, self._options.rules)
        found.steps.count(place, steps)
        for name in found.other_splitters:
            found.other_splitters[name] += any(len(self._usual.spans(answer)) >= 2 for answer in answers)
        found.signs.count(place, messages, steps.spans, found.plain_separator)
        found.repeats.count(rows, number, question_of(messages), "\n".join(answers))
        return _count_chat(found, place, messages, answers, [len(spans) for spans in steps.spans])

    def compare(self, others: RowSource) -> None:
        """Count the rows of another data set whose question is in this one, which has been read."""
        found, columns, leak, skipped = self.found, self._options.columns, Leak(others.name), ""
        for number, row in others:
            try:
                known = found.repeats.find(_asked(row, found.plain_text, columns))
            except RowError as error:
                leak.skipped += 1
                skipped = skipped or printable(f"{others.place(number)}: {error}")
                continue
            leak.rows += 1
            if known is not None:
                leak.found += 1
                leak.first = leak.first or (others.place(number), self._rows.place(known))
        _need_rows(others, leak.rows + leak.skipped, leak.rows, [f"first: {skipped}"])
        found.leak = leak


def _count_chat(
    found: TextStatistics, place: str, messages: Sequence[Mapping[str, str]], answers: list[str], steps: list[int]
) -> _Shown:
    """Count the messages and steps of a usable chat; how it is shown."""
    roles = tuple(message["role"] for message in messages)
    found.message_counts[len(messages)] += 1
    found.role_orders[", ".join(roles)] += 1
    found.step_counts[max(steps)] += 1
    found.pairs_first += sum(count >= 2 for count in steps)
    found.pairs_all += sum(max(count - 1, 0) for count in steps)
    asked = answered = False
    for message in messages:
        filled = bool(message["content"].strip())
        answered = answered or (message["role"] == "assistant" and asked and filled)
        asked = filled if message["role"] == "user" else asked
    found.rows_with_question += answered
    user = (_cut(message["content"]) for message in messages if message["role"] == "user")
    return lambda: RowSample(place, roles, next(user, None), _cut(answers[0]), steps[0])


def _count_stream(found: TextStatistics, rows: RowSource, number: int, row: Mapping[str, Any]) -> _Shown:
    """Count a usable row of plain text; how it is shown."""
    text = _asked(row, True, None)
    if row.get("input_ids") is not None:
        found.id_rows += 1
        found.ids += len(row["input_ids"])
    else:
        found.text_rows += 1
        found.characters += len(text)
    found.repeats.count(rows, number, text, "")
    return lambda: RowSample(rows.place(number), (), None, _cut(text), 0)


def _need_rows(rows: RowSource, read: int, usable: int, skipped: Iterable[str]) -> None:
    if not read:
        raise no_rows(rows.name)
    if not usable:
        raise DataError(f"{rows.name}: none of {read:,} rows can be used; {'; '.join(skipped)}")


def _asked(row: Any, plain_text: bool, columns: PairColumns | None) -> str:
    """What a row asks; of plain text the text itself. RowError if it cannot be used."""
    if plain_text and is_stream(row):
        held = stream_content(row)
        return held if isinstance(held, str) else " ".join(map(str, held.tolist()))
    return question_of(row_to_messages(row, None, columns))


def excerpt(row: object) -> str:
    """How a row begins, in one line."""
    try:
        text = row if isinstance(row, str) else json.dumps(row, ensure_ascii=False, default=str)
    except (ValueError, RecursionError, TypeError):
        text = repr(type(row))
    text = " ".join(text[: 4 * _EXCERPT].split())
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
