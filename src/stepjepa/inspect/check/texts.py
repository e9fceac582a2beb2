"""Statistics of a data set's text: what its rows hold and whether its answers have steps, without a tokenizer.

What a tokenizer makes of it is in `tokens`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from itertools import compress, islice
from typing import Any

from stepjepa.config.option import Names
from stepjepa.data.chat import KNOWN_CHATS, attempted, row_to_messages
from stepjepa.data.columns import is_trained, left_over, trained_answers
from stepjepa.data.encode import CHUNK_ROWS, CheckedChat, Encoded, EncodeOptions, PlacedRow, RowEncoder, render_checked
from stepjepa.data.options import PairColumns, is_stream
from stepjepa.data.prepare.rows import question_key, question_of
from stepjepa.data.report import RowCounts, StepCounts, listed_files
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import StepSplitter, rules_for
from stepjepa.data.token_rows import stream_content
from stepjepa.errors import RowError
from stepjepa.objectives.base import built_in
from stepjepa.training.options import ExampleOptions, JEPAOptions
from stepjepa.utils.parallel import mapped, twice
from stepjepa.utils.text import counted, escaped, printable

_SHOWN_CHARACTERS = 400
_EXCERPT = 160  # characters of a row that is skipped
_LONGEST_TABLE = 12  # numbers of steps listed one by one; more are put together
_MOST_KINDS = 5  # role orders listed
_SERVES = 0.1  # steps in a smaller share of the rows are not enough for step_jepa
_NAME = Names(ExampleOptions)


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


@dataclass
class Leak:
    """Rows of an evaluation file whose question is in the training file.

    Attributes:
        source: the evaluation file.
        rows, skipped: rows that were compared, and those that cannot be used.
        found: rows with a question of the training file.
        first: place of the first such row, and of the training row; () where there is none.
    """

    source: str
    rows: int = 0
    skipped: int = 0
    found: int = 0
    first: tuple[str, ...] = ()


def hashed_question(question: str) -> int | None:
    """The hash by which questions are compared; None for a blank one, which is no question."""
    return question_key(question) if question.strip() else None


@dataclass
class TextStatistics(RowCounts):
    """What the rows of a data set hold; every row read is counted once as usable or skipped.

    Attributes:
        splitter, separator: how steps were looked for.
        files: of a folder, those that are read.
        plain_text: whether the first row, and with it the data set, is plain text and no chat.
        rows_usable: rows that can be trained on.
        skipped_texts: reason -> how the first row begins that is skipped for it.
        message_counts: messages in a row -> usable chats.
        role_orders: "system, user, assistant" -> usable chats.
        step_counts: steps -> usable chats; of a row with several answers the one with the most steps counts.
        rows_with_question: usable chats with a user's text before an answer's.
        pairs_first, pairs_all: pairs that ``step_pairs`` first and all would make.
        other_splitters: the splitter that ``auto`` chooses for the data set, where it is another one -> usable chats in
            which it finds two or more steps.
        text_rows, id_rows: usable rows of text, and of token ids; `characters`, `ids`: how much they hold.
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
    skipped_texts: dict[str, str] = field(default_factory=dict)
    message_counts: Counter[int] = field(default_factory=Counter)
    role_orders: Counter[str] = field(default_factory=Counter)
    step_counts: Counter[int] = field(default_factory=Counter)
    rows_with_question: int = 0
    pairs_first: int = 0
    pairs_all: int = 0
    other_splitters: Counter[str] = field(default_factory=Counter)
    text_rows: int = 0
    id_rows: int = 0
    characters: int = 0
    ids: int = 0
    steps: StepCounts = field(default_factory=StepCounts)
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
            other = f"train with --{_NAME.objective} llm_jepa, which needs no steps"
            return f"not for step_jepa: {none}; give --{_NAME.step_separator}, or {other}"
        rest = f"; the other {usable - found:,} would train as plain language modelling" if found < usable else ""
        return f"ready for step_jepa: {found:,} of {usable:,} rows have two or more steps{rest}"

    @property
    def found_by(self) -> str:
        """Where steps come from, with a separator of one's own."""
        given = self.splitter in ("separator", "regex") and self.separator != "\n\n" and not self.steps.own
        return f"{self.steps.words} {escaped(self.separator)}" if given else self.steps.words

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        counters = {name: value for name, value in vars(self).items() if isinstance(value, Counter)}
        return {
            **super().to_dict(),
            **{name: {str(key): rows for key, rows in sorted(value.items())} for name, value in counters.items()},
            "samples": [asdict(sample) for sample in self.samples],
            "repeats": self.repeats.to_dict(),
            "leak": None if self.leak is None else asdict(self.leak),
            "rows_with_steps": self.rows_with_steps,
            "better_splitter": self.better_splitter,
            "ready_for_step_jepa": self.ready,
            "verdict": self.verdict,
        }

    def lines(self) -> list[str]:
        """The statistics, one fact a line. What comes from the file is made `printable`."""
        skipped = sum(self.rows_skipped.values())
        lines = [f"Format check: {printable(self.source)}"]
        lines += [f"  Files: {listed_files(self.files)}"] if self.files else []
        lines.append(f"  Rows: {self.rows_read:,} read, {self.rows_usable:,} usable, {skipped:,} skipped")
        for line, (reason, _) in zip(self.skipped_lines(), self.rows_skipped.most_common(), strict=True):
            lines += [f"    {printable(line)}", f"      the row begins: {escaped(self.skipped_texts[reason])}"]
        lines += [f"  {line}" for line in self.other_lines()]
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


@dataclass
class _TextCounter:
    """Counts chunks of rows, each by itself, so that they may be counted anywhere; an `encoder` makes their examples.
    `empty` are statistics of no rows, `usual` is the splitter that ``auto`` chooses."""

    empty: TextStatistics
    options: EncodeOptions
    usual: StepSplitter
    show: int
    encoder: RowEncoder | None = None

    def __call__(self, rows: Sequence[PlacedRow]) -> tuple[TextStatistics, list[int | None], Encoded | None]:
        """Statistics of a chunk, the hash of every row's question, and examples.

        With `strict_data` a DataError for an unusable row.
        """
        found, keys = deepcopy(self.empty), list[int | None]()
        found.rows_read = len(rows)
        plain = [found.plain_text and is_stream(row) for _, row in rows]
        told_rows = [row for (_, row), text in zip(rows, plain, strict=True) if not text]
        chats = [attempted(CheckedChat.of, row, self.options, True) for row in told_rows]
        if self.encoder is not None and chats:  # what the model gets is counted, which may be less than the rows hold
            chats = render_checked(told_rows, chats, self.encoder.chats, self.options.rules)
        checked = iter(chats)
        for (place, row), text in zip(rows, plain, strict=True):
            read = self._count_text if text else self._count_chat
            told = attempted(read, found, place, row if text else next(checked))
            if isinstance(told, RowError):
                found.skip(told, place, self.options.strict_data)
                found.skipped_texts.setdefault(told.reason, excerpt(row))
                told = None
            keys.append(told)
        found.rows_usable = found.rows_read - found.rows_skipped.total()
        return found, keys, None if self.encoder is None else self.encoder(rows, chats)

    def _count_chat(self, found: TextStatistics, place: str, chat: Any) -> int | None:
        """Count a `CheckedChat`; the hash of its question. Raises the RowError that it may be or have."""
        if isinstance(chat, RowError):
            raise chat
        if isinstance(chat.steps, RowError):
            raise chat.steps
        found.see_left_over(chat.rest)
        found.steps.count(place, chat.steps)
        trained = trained_answers(chat.messages)
        spans = list(compress(chat.steps.spans, trained))
        chat = chat._replace(answers=list(compress(chat.answers, trained)))
        messages, answers = chat.messages, chat.answers
        roles, steps = [message["role"] for message in messages], list(map(len, spans))
        for name in found.other_splitters:
            found.other_splitters[name] += any(len(self.usual.spans(answer)) >= 2 for answer in answers)
        found.message_counts[len(messages)] += 1
        found.role_orders[", ".join(roles)] += 1
        found.step_counts[max(steps)] += 1
        found.pairs_first += sum([count >= 2 for count in steps])
        found.pairs_all += sum([count - 1 for count in steps if count])
        asked = answered = False
        for message in messages:
            filled = bool(message["content"].strip())
            answered = answered or (message["role"] == "assistant" and asked and filled and is_trained(message))
            asked = filled if message["role"] == "user" else asked
        found.rows_with_question += answered
        if len(found.samples) < self.show:
            user = (_cut(message["content"]) for message in messages if message["role"] == "user")
            found.samples.append(RowSample(place, tuple(roles), next(user, None), _cut(answers[0]), steps[0]))
        return hashed_question(question_of(messages))

    def _count_text(self, found: TextStatistics, place: str, row: Mapping[str, Any]) -> int | None:
        """Count a row of plain text; the hash of its text. RowError if it cannot be used."""
        text = _asked(row, True, None)
        found.see_left_over(left_over(row, ()))
        if row.get("input_ids") is not None:
            found.id_rows += 1
            found.ids += len(text.split())
        else:
            found.text_rows += 1
            found.characters += len(text)
        if len(found.samples) < self.show:
            found.samples.append(RowSample(place, (), None, _cut(text), 0))
        return hashed_question(text)


class TextReader:
    """Reads the rows of a data set and counts what is in their text: messages, steps and what there is to warn of.

    As in training, the first row decides whether the data set is one of chats or of plain text.

    Args:
        rows: of the data set.
        method: how they become chats, and how their steps are found.
        show: how many usable ones to keep as samples.

    Attributes:
        found: the statistics of what has been read.

    Raises:
        DataError: a source is missing or empty.
        ConfigError: an unknown splitter, or an empty separator.
    """

    def __init__(self, rows: RowSource, method: JEPAOptions, show: int = 1):
        columns = method.columns
        rules = rules_for(rows, method.step_splitter, method.step_separator, method.steps_column, columns)
        usual = rules_for(rows, "auto", column=method.steps_column, columns=columns).splitter
        empty = TextStatistics(
            rows.name,
            rules.name,
            rules.splitter.separator if rules.splitter.reads_separator and not rules.required else "\n",
            rows.files,
            plain_text=columns is None and is_stream(next((row for _, row in rows), None)),
            other_splitters=Counter({usual.name: 0} if rules.required or usual != rules.splitter else {}),
            steps=StepCounts.of(rules),
        )
        self.rows, self.found = rows, deepcopy(empty)
        self._counter = _TextCounter(empty, EncodeOptions.of(method, rules=rules), usual, show)

    def read(self, processes: int = 1, encoder: RowEncoder | None = None) -> Iterator[tuple[list[Any], Any]]:
        """Chunks of the numbered rows, and what the encoder, where there is one, makes of each.

        Raises:
            DataError: the source is broken or without a usable row, or with ``strict_data`` the first bad row.
        """
        rows, found, numbered = self.rows, self.found, iter(self.rows)
        counter = replace(self._counter, encoder=encoder)
        ahead, chunks = twice(iter(lambda: list(islice(numbered, CHUNK_ROWS)), []))
        sent = ([(rows.place(number), row) for number, row in chunk] for chunk in ahead)
        for (texts, keys, made), chunk in zip(mapped(counter, sent, processes, "num_proc"), chunks, strict=False):
            found.samples += texts.samples[: counter.show - len(found.samples)]
            found.add(texts)
            for (number, _), own in zip(chunk, keys, strict=True):
                if own is not None:
                    found.repeats.count(rows, number, own)
            yield chunk, made
        found.require(found.rows_usable)

    def compare(self, others: RowSource) -> None:
        """Count the rows of another data set whose question is in this one, which has been read."""
        found, columns = self.found, self._counter.options.columns
        leak, counts = Leak(others.name), RowCounts(others.name)
        for number, row in others:
            counts.rows_read += 1
            try:
                known = found.repeats.find(_asked(row, found.plain_text, columns))
            except RowError as error:
                counts.skip(error, others.place(number))
                continue
            leak.rows += 1
            if known is not None:
                leak.found += 1
                leak.first = leak.first or (others.place(number), self.rows.place(known))
        counts.require(leak.rows)
        found.leak, leak.skipped = leak, counts.rows_skipped.total()


def _asked(row: Any, plain_text: bool, columns: PairColumns | None) -> str:
    """What a row asks; of plain text the text itself. RowError if it cannot be used."""
    if plain_text and is_stream(row):
        held = stream_content(row)
        return held if isinstance(held, str) else " ".join(map(str, held.ids.tolist()))
    return question_of(row_to_messages(row, None, columns))


def excerpt(row: object) -> str:
    """How a row begins, in one line."""
    text = row if isinstance(row, str) else repr(row)
    text = " ".join(text[: 4 * _EXCERPT].split())
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
