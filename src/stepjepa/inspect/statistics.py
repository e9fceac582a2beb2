"""Statistics of a data set's text, without a tokenizer: the contents of its rows and the steps of its answers.

The statistics of the tokenised data set are in `check`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from itertools import compress, islice
from typing import Any, NamedTuple

import numpy as np

from stepjepa.config.option import Names
from stepjepa.data.chat import KNOWN_CHATS, row_to_messages
from stepjepa.data.columns import TOOL_CALLS, is_stream, left_over, trained_answers, turn_name
from stepjepa.data.encode import (
    CHUNK_ROWS,
    CheckedChat,
    Encoded,
    EncodeOptions,
    PlacedRow,
    RowEncoder,
)
from stepjepa.data.options import PairColumns
from stepjepa.data.prepare_rows import question_key, question_of
from stepjepa.data.report import RowCounts, StepCounts
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import rules_for
from stepjepa.data.token_rows import stream_content
from stepjepa.errors import RowError, attempted
from stepjepa.objectives.base import built_in
from stepjepa.training.options import ExampleOptions, JEPAOptions
from stepjepa.utils.parallel import mapped
from stepjepa.utils.text import counted, printable

# Of each text of the first row.
_SHOWN_CHARACTERS, _SHOWN_LINES = 400, 4
# Lines of the table of steps; answers with more steps are counted together.
_LONGEST_TABLE = 8
# Characters of the longest bar of the table.
_BAR = 40
# Orders of roles that are listed, the most frequent first.
_MOST_ORDERS = 5
# A file in which a smaller share of the chats has steps is not ready for step_jepa.
_LEAST_SHARE = 0.1
# A `max_length` that cuts nothing.
_UNLIMITED = 2**31 - 1
_NAME = Names(ExampleOptions)
FEW_STEPS = (
    f"name another --{_NAME.step_splitter} or --{_NAME.step_separator}, or train with --{_NAME.objective} llm_jepa, which "
    "needs no steps"
)


@dataclass(frozen=True)
class RowSample:
    """A row that is printed as an example.

    Attributes:
        place: of the row.
        roles: of its messages, in order; () for plain text.
        texts: "User", "Tool call", "Assistant" -> the first 400 characters of the first such text; "Text" -> those of plain
            text.
        steps: the number of steps of the first answer.
    """

    place: str
    roles: tuple[str, ...]
    texts: dict[str, str]
    steps: int = 0

    def lines(self) -> list[str]:
        """The printed sample."""
        place = printable(self.place)
        if self.roles:
            place += f" ({counted(self.steps, 'step')})"
        lines = ["", place]
        for name, text in self.texts.items():
            lines.append(f"  {name}:")
            shown = printable(text.replace("\r\n", "\n").expandtabs(4)).split("\n")
            if len(shown) > _SHOWN_LINES:
                shown = [*shown[:_SHOWN_LINES], "..."]
            lines += [f"    {line}".rstrip() for line in shown]
        return lines


@dataclass
class Leak(RowCounts):
    """Rows of an evaluation file whose question is in the training file.

    Attributes:
        rows: usable rows, which were compared.
        found: rows with a question of the training file.
        first: places of the first such row and of the training row; () if there is none.
    """

    rows: int = 0
    found: int = 0
    first: tuple[str, ...] = ()


@dataclass
class TextStatistics(RowCounts):
    """The contents of a data set's rows; every row is counted once, as usable or skipped.

    Attributes:
        splitter: the splitter that searched for steps.
        plain_text: whether the first row, and therefore the data set, is plain text instead of a chat.
        rows_usable: rows that can be trained on.
        role_orders: "system, user, assistant" -> number of usable chats.
        step_counts: number of steps -> number of usable chats; of several answers the one with the most steps counts.
        rows_with_question: usable chats with a text of the user.
        pairs_first, pairs_all: pairs that ``step_pairs`` first and all would make.
        streams: usable rows of plain text or token ids.
        steps: where the steps come from.
        repeats: rows with the question of an earlier row (`prepare_rows.question_key` ignores letter case and white space).
        first_repeat: places of the first such row and of the row that it repeats; () if there is none.
        leak: rows of the evaluation file with a question of this one; None without such a file.
        samples: the first usable row.
    """

    splitter: str
    plain_text: bool = False
    rows_usable: int = 0
    role_orders: Counter[str] = field(default_factory=Counter)
    step_counts: Counter[int] = field(default_factory=Counter)
    rows_with_question: int = 0
    pairs_first: int = 0
    pairs_all: int = 0
    streams: int = 0
    steps: StepCounts = field(default_factory=StepCounts)
    repeats: int = 0
    first_repeat: tuple[str, ...] = ()
    leak: Leak | None = None
    samples: list[RowSample] = field(default_factory=list)

    @property
    def chats(self) -> int:
        """Usable rows that are chats."""
        return self.rows_usable - self.streams

    @property
    def rows_with_steps(self) -> int:
        """The number of usable chats with an answer of two or more steps."""
        return sum(rows for steps, rows in self.step_counts.items() if steps >= 2)

    @property
    def ready(self) -> bool:
        """Whether enough rows have steps for ``step_jepa``, with the splitter in use."""
        return self.rows_with_steps >= max(_LEAST_SHARE * self.chats, 1) and not self.plain_text

    @property
    def verdict(self) -> str:
        """The objectives that the file suits, in one sentence."""
        if self.plain_text:
            names = " or ".join(name for name, cls in built_in().items() if cls.takes_text)
            return f"plain text: train with --{_NAME.objective} {names}; the others need chats ({KNOWN_CHATS})"
        rows, chats = self.rows_with_steps, self.chats
        if self.ready:
            verdict = f"ready for step_jepa: {rows:,} of {chats:,} rows have two or more steps"
            if rows < chats:
                verdict += f"; the other {chats - rows:,} would be used for the LM loss only"
            return verdict
        few = f"only {rows:,} of {chats:,} rows have" if rows else "no row has"
        return f"not for step_jepa: {few} two steps ({self.steps.words}); {FEW_STEPS}"

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        return {
            **super().to_dict(),
            "step_counts": {str(steps): rows for steps, rows in sorted(self.step_counts.items())},
            "samples": [asdict(sample) for sample in self.samples],
            "rows_with_steps": self.rows_with_steps,
            "verdict": self.verdict,
            "ready_for_step_jepa": self.ready,
        }

    def lines(self) -> list[str]:
        """The statistics without the verdict, one fact per line. Text from the file is made `printable`."""
        lines = [f"Format check: {printable(self.source)}"]
        skipped = self.rows_skipped.total()
        lines.append(
            f"  Rows: {self.rows_read:,} read, {self.rows_usable:,} usable, {skipped:,} skipped"
        )
        lines += [f"    {printable(line)}" for line in self.skipped_lines()]
        lines += [f"  {line}" for line in self.other_lines()]
        if self.streams:
            lines.append(f"  Plain text: {counted(self.streams, 'row')}")
        if self.chats:
            lines.append(f"  Roles: {_listed(self.role_orders)}")
        for sample in self.samples:
            lines += sample.lines()
        if self.chats and not self.plain_text:
            lines += ["", f"Steps an answer ({self.steps.words}):", *self._table()]
            first, every = f"--{_NAME.step_pairs} first", f"--{_NAME.step_pairs} all"
            lines.append(f"  Pairs: {self.pairs_first:,} ({first}), {self.pairs_all:,} ({every})")
        return lines

    def verdict_lines(self) -> list[str]:
        """The number of rows for ``llm_jepa``, and the verdict."""
        lines = [f"Verdict: {self.verdict}"]
        if not self.plain_text:
            lines.insert(
                0,
                f"For llm_jepa: {self.rows_with_question:,} of {self.chats:,} rows have a user message",
            )
        return lines

    def _table(self) -> list[str]:
        """A line with a bar for each number of steps."""
        # The last line counts all answers with as many steps or more.
        counts: Counter[int] = Counter()
        for steps, rows in self.step_counts.items():
            counts[min(steps, _LONGEST_TABLE)] += rows
        most = max(counts.values())
        lines = []
        for steps, rows in sorted(counts.items()):
            label = f"{steps}{'+' if steps == _LONGEST_TABLE else ''}"
            share = rows / self.chats
            # Few rows still have a bar.
            bar = "#" * max(1, round(_BAR * rows / most))
            lines.append(f"  {label:>4} {counted(rows, 'row'):>14} {share:7.1%}  {bar}")
        return lines


def _listed(counts: Counter[str]) -> str:
    return "; ".join(
        f"{key} ({counted(rows, 'row')})" for key, rows in counts.most_common(_MOST_ORDERS)
    )


class Chunk(NamedTuple):
    """The counts of a chunk of rows.

    Attributes:
        numbers: of the rows.
        texts: statistics of the chunk.
        questions: the hash of each row's question; None for a row without one.
        encoded: the examples of the rows; None without an encoder.
        longest: tokens of the longest chat before any cut; 0 for plain text.
    """

    numbers: list[int]
    texts: TextStatistics
    questions: list[int | None]
    encoded: Encoded | None
    longest: int


@dataclass
class _Counter:
    """Counts chunks of rows independently, so that any process can count them.

    Attributes:
        empty: statistics of no rows.
        encoder: makes the examples of the rows; None to count text only.
    """

    empty: TextStatistics
    options: EncodeOptions
    encoder: RowEncoder | None = None

    def __call__(self, numbered: Sequence[tuple[int, PlacedRow]]) -> Chunk:
        """Count a chunk of numbered rows; DataError for an unusable row with `strict_data`."""
        numbers = [number for number, _ in numbered]
        rows = [row for _, row in numbered]
        texts = deepcopy(self.empty)
        is_text = [texts.plain_text and is_stream(row) for _, row in rows]
        chat_rows = [row for (_, row), text in zip(rows, is_text, strict=True) if not text]
        # With an encoder the rendered chat is counted: a template may leave out parts of a row.
        renderer = self.encoder.chats if self.encoder is not None and chat_rows else None
        chats = [attempted(CheckedChat.of, row, self.options, True, renderer) for row in chat_rows]

        # A bad row raises in its own count, so it is skipped and the others go on.
        questions = list[int | None]()
        remaining_chats = iter(chats)
        for (place, row), text in zip(rows, is_text, strict=True):
            if text:
                question = attempted(self._count_text, texts, place, row)
            else:
                question = attempted(self._count_chat, texts, place, next(remaining_chats))
            if isinstance(question, RowError):
                texts.skip(question, place, self.options.strict_data)
                question = None
            questions.append(question)
        texts.rows_read = len(rows)
        texts.rows_usable = len(rows) - texts.rows_skipped.total()
        if self.encoder is None:
            return Chunk(numbers, texts, questions, None, 0)
        # The encoder gets the chats that were read above; reading and rendering take most of the time.
        encoded = self.encoder(rows, chats)
        return Chunk(numbers, texts, questions, encoded, _longest_chat(self.encoder, rows, encoded))

    def _count_chat(
        self, texts: TextStatistics, place: str, chat: CheckedChat | RowError
    ) -> int | None:
        """Count a chat and return the hash of its question; a RowError, as the chat or as its steps, is raised."""
        if isinstance(chat, RowError):
            raise chat
        if isinstance(chat.steps, RowError):
            raise chat.steps
        # `CheckedChat.of` was called with `steps`.
        assert chat.steps is not None
        texts.see_left_over(chat.rest)
        texts.steps.count(place, chat.steps)
        # An answer of n steps makes one pair (first) or n - 1 (all); answers that are only context make none.
        trained = trained_answers(chat.messages)
        steps = [len(spans) for spans in compress(chat.steps.spans, trained)]
        texts.step_counts[max(steps, default=0)] += 1
        texts.pairs_first += sum(count >= 2 for count in steps)
        texts.pairs_all += sum(count - 1 for count in steps if count)

        roles = tuple(turn_name(message) for message in chat.messages)
        texts.role_orders[", ".join(roles)] += 1
        if not texts.samples:
            asked = [message["content"] for message in chat.messages if message["role"] == "user"]
            calls = [
                json.dumps(message[TOOL_CALLS])
                for message in chat.messages
                if TOOL_CALLS in message
            ]
            answers = list(compress(chat.answers, trained))
            contents = {"User": asked, "Tool call": calls, "Assistant": answers}
            shown = {name: _cut(of_name[0]) for name, of_name in contents.items() if of_name}
            texts.samples = [RowSample(place, roles, shown, sum(steps[:1]))]
        question = _hashed(question_of(chat.messages))
        texts.rows_with_question += question is not None
        return question

    def _count_text(self, texts: TextStatistics, place: str, row: Mapping[str, Any]) -> int | None:
        """Count a row of plain text and return the hash of the text; RowError if it cannot be used."""
        text = _question_text(row, True, None)
        texts.see_left_over(left_over(row, ()))
        texts.streams += 1
        texts.samples = texts.samples or [RowSample(place, (), {"Text": _cut(text)})]
        return _hashed(text)


def _longest_chat(encoder: RowEncoder, rows: Sequence[PlacedRow], encoded: Encoded) -> int:
    """Tokens of the longest chat before any cut."""
    if encoder.streams:
        return 0
    # A chat may have been cut if its example is full or missing; only such chats are tokenised again, without a limit.
    lengths = encoded.store.lengths.tolist()
    stops = np.cumsum(encoded.counts).tolist()
    cut_rows = []
    for row, examples, stop in zip(rows, encoded.counts, stops, strict=True):
        if not examples or lengths[stop - 1] >= encoder.options.max_length:
            cut_rows.append(row)
    uncut = replace(encoder.options, max_length=_UNLIMITED, objective=None, strict_data=False)
    full = replace(encoder, options=uncut)(cut_rows)
    return max([*lengths, *full.store.lengths.tolist()], default=0)


class TextReader:
    """Reads the rows of a data set and counts their messages, steps and problems.

    As in training, the first row decides whether the data set has chats or plain text.

    Args:
        rows: of the data set.
        method: how they become chats and are split into steps.

    Attributes:
        texts: the statistics of the rows read so far.

    Raises:
        DataError: a source is missing or empty.
        ConfigError: an unknown splitter, or an empty separator.
    """

    def __init__(self, rows: RowSource, method: JEPAOptions):
        columns = method.columns
        rules = rules_for(
            rows, method.step_splitter, method.step_separator, method.steps_column, columns
        )
        first_row = next((row for _, row in rows), None)
        plain_text = columns is None and is_stream(first_row)
        steps = StepCounts.of(rules)
        empty = TextStatistics(rows.name, rules.name, plain_text, steps=steps)
        self.rows = rows
        self.texts = deepcopy(empty)
        # Hash of a question -> number of the first row with it. Texts would take the memory of the file.
        self._first_row_of: dict[int, int] = {}
        options = EncodeOptions.of(method, rules=rules)
        self._counter = _Counter(empty, options)

    def read(self, processes: int = 1, encoder: RowEncoder | None = None) -> Iterator[Chunk]:
        """Count the rows and yield the counts of each chunk, with its examples if there is an encoder.

        Raises:
            DataError: the source is broken or has no usable row, or with ``strict_data`` the first unusable row.
        """
        rows, texts = self.rows, self.texts
        placed = ((number, (rows.place(number), row)) for number, row in rows)
        chunks = iter(lambda: list(islice(placed, CHUNK_ROWS)), [])
        for result in mapped(
            replace(self._counter, encoder=encoder), chunks, processes, "num_proc"
        ):
            texts.samples = texts.samples or result.texts.samples
            texts.add(result.texts)
            # Repeats are counted here, in one process: two rows with one question may be in different chunks.
            for number, question in zip(result.numbers, result.questions, strict=True):
                if question is None:
                    continue
                earlier = self._first_row_of.setdefault(question, number)
                if earlier != number:
                    texts.repeats += 1
                    texts.first_repeat = texts.first_repeat or (
                        rows.place(earlier),
                        rows.place(number),
                    )
            yield result
        texts.require(texts.rows_usable)

    def compare(self, eval_rows: RowSource) -> None:
        """Count the rows of another data set whose question is in this one; call it after `read`."""
        leak = self.texts.leak = Leak(eval_rows.name)
        for number, row in eval_rows:
            leak.rows_read += 1
            question = attempted(
                _question_text, row, self.texts.plain_text, self._counter.options.columns
            )
            if isinstance(question, RowError):
                leak.skip(question, eval_rows.place(number))
                continue
            leak.rows += 1
            # A blank question is no question, and equals no other.
            training_row = (
                self._first_row_of.get(question_key(question)) if question.strip() else None
            )
            if training_row is not None:
                leak.found += 1
                leak.first = leak.first or (eval_rows.place(number), self.rows.place(training_row))
        leak.require(leak.rows)


def _question_text(row: Any, plain_text: bool, columns: PairColumns | None) -> str:
    """The question of a row, or the text itself of plain text; RowError if it cannot be used."""
    if plain_text and is_stream(row):
        content = stream_content(row)
        return content if isinstance(content, str) else " ".join(map(str, content.ids.tolist()))
    return question_of(row_to_messages(row, None, columns))


def _hashed(question: str) -> int | None:
    """The hash by which questions are compared; None for a blank text."""
    return question_key(question) if question.strip() else None


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
