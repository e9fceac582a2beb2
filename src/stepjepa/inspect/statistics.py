"""Statistics of a data set's text, without a tokenizer: the contents of its rows and the steps of its answers.

The statistics of the tokenised data set are in `check`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import compress, islice
from typing import Any, NamedTuple

from stepjepa.config.option import Names
from stepjepa.data.chat import KNOWN_CHATS, row_to_messages
from stepjepa.data.columns import (
    CALL,
    TOOL_CALLS,
    Row,
    answers_in,
    is_stream,
    is_trained,
    left_over,
    turn_name,
)
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
from stepjepa.utils.text import counted, escaped

# How much is shown of each text of the first row.
_SHOWN_CHARACTERS = 400
# Lines of the table of steps; answers with more steps are counted together.
_LONGEST_TABLE = 8
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


@dataclass
class Leak(RowCounts):
    """Rows of an evaluation file whose question is in the training file.

    Attributes:
        rows: usable rows; only these were compared.
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
        step_counts: number of steps -> number of usable chats; if a chat has several answers, the one with the most steps
            counts.
        pairs_first, pairs_all: pairs that ``step_pairs`` first and all would make.
        streams: usable rows of plain text or token ids.
        steps: where the steps come from.
        repeats: rows with the question of an earlier row (`prepare_rows.question_key` ignores letter case and white space).
        first_repeat: places of the first such row and of the row that it repeats; () if there is none.
        leak: rows of the evaluation file with a question of this one; None without such a file.
        sample: lines that show the first usable row, with the start of each role's first text.
    """

    splitter: str
    plain_text: bool = False
    rows_usable: int = 0
    role_orders: Counter[str] = field(default_factory=Counter)
    step_counts: Counter[int] = field(default_factory=Counter)
    pairs_first: int = 0
    pairs_all: int = 0
    streams: int = 0
    steps: StepCounts = field(default_factory=StepCounts)
    repeats: int = 0
    first_repeat: tuple[str, ...] = ()
    leak: Leak | None = None
    sample: list[str] = field(default_factory=list)

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
        few = f"only {rows:,} of {chats:,} rows have two or more steps ({self.steps.words})"
        return f"not for step_jepa: {few}; {FEW_STEPS}"

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        return {
            **super().to_dict(),
            "rows_with_steps": self.rows_with_steps,
            "verdict": self.verdict,
            "ready_for_step_jepa": self.ready,
        }

    def lines(self) -> list[str]:
        """The statistics without the verdict, one fact per line."""
        skipped = self.rows_skipped.total()
        lines = [
            f"Format check: {self.source}",
            f"  Rows: {self.rows_read:,} read, {self.rows_usable:,} usable, {skipped:,} skipped",
        ]
        lines += [f"    {line}" for line in self.skipped_lines()]
        if self.streams:
            lines.append(f"  Plain text: {counted(self.streams, 'row')}")
        if self.chats:
            orders = [
                f"{order} ({counted(rows, 'row')})"
                for order, rows in self.role_orders.most_common(_MOST_ORDERS)
            ]
            lines.append(f"  Roles: {'; '.join(orders)}")
        lines += self.sample
        if self.chats and not self.plain_text:
            lines += ["", f"Steps per answer ({self.steps.words}):", *self._table()]
            first, every = f"--{_NAME.step_pairs} first", f"--{_NAME.step_pairs} all"
            lines.append(f"  Pairs: {self.pairs_first:,} ({first}), {self.pairs_all:,} ({every})")
        return lines

    def _table(self) -> list[str]:
        """A line for each number of steps."""
        # The last line counts all answers with as many steps or more.
        counts: Counter[int] = Counter()
        for steps, rows in self.step_counts.items():
            counts[min(steps, _LONGEST_TABLE)] += rows
        lines = []
        for steps, rows in sorted(counts.items()):
            label = f"{steps}+" if steps == _LONGEST_TABLE else f"{steps}"
            lines.append(f"  {label:>4} {counted(rows, 'row'):>14} {rows / self.chats:7.1%}")
        return lines


class Chunk(NamedTuple):
    """The counts of a chunk of rows.

    Attributes:
        texts: statistics of the chunk.
        questions: the number of a row -> the hash of its question; rows without one are left out.
        encoded: the examples of the rows; None without an encoder.
        longest: tokens of the longest chat before any cut; 0 for plain text.
    """

    texts: TextStatistics
    questions: dict[int, int]
    encoded: Encoded | None = None
    longest: int = 0


@dataclass
class _Counter:
    """Counts chunks of rows independently of each other, so that any process can count any chunk.

    Attributes:
        empty: statistics of no rows.
        encoder: makes the examples of the rows; None to count text only.
    """

    empty: TextStatistics
    options: EncodeOptions
    encoder: RowEncoder | None = None

    def __call__(self, numbered: Sequence[tuple[int, PlacedRow]]) -> Chunk:
        """Count a chunk of numbered rows; DataError for an unusable row with `strict_data`."""
        texts = deepcopy(self.empty)
        questions: dict[int, int] = {}
        # With an encoder, the rendered chat is counted, because a template may leave out parts of a row.
        renderer = None if self.encoder is None else self.encoder.chats
        # The error of a bad row is caught for that row, so it is skipped and the others are counted.
        for number, (place, row) in numbered:
            if texts.plain_text and is_stream(row):
                question = attempted(self._count_text, texts, place, row)
            else:
                chat = attempted(CheckedChat.of, row, self.options, True, renderer)
                question = attempted(self._count_chat, texts, place, chat)
            if isinstance(question, RowError):
                texts.skip(question, place, self.options.strict_data)
            elif question.strip():
                questions[number] = question_key(question)
        texts.rows_read = len(numbered)
        texts.rows_usable = len(numbered) - texts.rows_skipped.total()
        if self.encoder is None:
            return Chunk(texts, questions)
        # The encoder reads and renders the rows again: its options need other parts of a row.
        rows = [row for _, row in numbered]
        encoded = self.encoder(rows)
        return Chunk(texts, questions, encoded, _longest_chat(self.encoder, rows, encoded))

    def _count_chat(self, texts: TextStatistics, place: str, chat: CheckedChat | RowError) -> str:
        """Count a chat and return its question; if the chat or its steps are a RowError, raise it."""
        if isinstance(chat, RowError):
            raise chat
        if isinstance(chat.steps, RowError):
            raise chat.steps
        # `CheckedChat.of` was called with `steps`.
        assert chat.steps is not None
        texts.unread.update(chat.unread)
        texts.steps.count(place, chat.steps)
        # An answer of n steps makes one pair (first) or n - 1 (all); answers that are only context make none.
        trained = map(is_trained, answers_in(chat.messages))
        steps = [len(spans) for spans in compress(chat.steps.spans, trained)]
        texts.step_counts[max(steps, default=0)] += 1
        texts.pairs_first += sum(count >= 2 for count in steps)
        texts.pairs_all += sum(count - 1 for count in steps if count)

        roles = [turn_name(message) for message in chat.messages]
        texts.role_orders[", ".join(roles)] += 1
        if not texts.sample:
            shown: dict[str, str] = {}
            for role, message in zip(roles, chat.messages, strict=True):
                text = json.dumps(message[TOOL_CALLS]) if role == CALL else message["content"]
                shown.setdefault(role.capitalize(), text)
            heading = f"{place} ({counted(sum(steps[:1]), 'step')})"
            texts.sample = _sample(heading, shown)
        return question_of(chat.messages)

    def _count_text(self, texts: TextStatistics, place: str, row: Row) -> str:
        """Count a row of plain text and return the text; RowError if it cannot be used."""
        text = _question_text(row, True, None)
        texts.unread.update(left_over(row, ()))
        texts.streams += 1
        texts.sample = texts.sample or _sample(place, {"Text": text})
        return text


def _longest_chat(encoder: RowEncoder, rows: Sequence[PlacedRow], encoded: Encoded) -> int:
    """Tokens of the longest chat before any cut."""
    if encoder.streams:
        return 0
    lengths = encoded.store.lengths
    # A full or a missing example may come from a chat that was cut; then the rows are tokenised again, without a limit.
    if 0 in encoded.counts or lengths.max() >= encoder.options.max_length:
        uncut = replace(encoder.options, max_length=_UNLIMITED, objective=None, strict_data=False)
        lengths = replace(encoder, options=uncut)(rows).store.lengths
    return int(lengths.max(initial=0))


class TextReader:
    """Reads the rows of a data set and counts their messages, steps and problems.

    As in training, the first row decides whether the data set has chats or plain text.

    Args:
        rows: the rows of the data set.
        method: the options by which rows become chats and are split into steps.

    Attributes:
        texts: the statistics of the rows read so far.

    Raises:
        DataError: a source is missing or empty.
        ConfigError: an unknown splitter, or an empty separator.
    """

    def __init__(self, rows: RowSource, method: JEPAOptions):
        columns = method.columns
        rules = rules_for(rows, method, columns)
        first_row = next((row for _, row in rows), None)
        plain_text = columns is None and is_stream(first_row)
        steps = StepCounts(rules.name)
        empty = TextStatistics(rows.name, rules.name, plain_text, steps=steps)
        self.rows = rows
        self.texts = deepcopy(empty)
        # Hash of a question -> number of the first row with it. The texts would take as much memory as the file.
        self._first_row_of: dict[int, int] = {}
        options = EncodeOptions.of(method, rules=rules)
        self._counter = _Counter(empty, options)

    def read(self, processes: int = 1, encoder: RowEncoder | None = None) -> Iterator[Chunk]:
        """Count the rows and yield the counts of each chunk, with its examples if there is an encoder.

        Raises:
            DataError: the source is broken or has no usable row, or, with ``strict_data``, a row is unusable.
        """
        rows, texts = self.rows, self.texts
        placed = ((number, (rows.place(number), row)) for number, row in rows)
        chunks = iter(lambda: list(islice(placed, CHUNK_ROWS)), [])
        for result in mapped(
            replace(self._counter, encoder=encoder), chunks, processes, "num_proc"
        ):
            texts.add(result.texts)
            # Repeats are counted here, in one process: two rows with the same question may be in different chunks.
            for number, question in result.questions.items():
                earlier = self._first_row_of.setdefault(question, number)
                if earlier != number:
                    texts.repeats += 1
                    places = rows.place(earlier), rows.place(number)
                    texts.first_repeat = texts.first_repeat or places
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
            training_row = None
            if question.strip():
                training_row = self._first_row_of.get(question_key(question))
            if training_row is not None:
                leak.found += 1
                leak.first = leak.first or (eval_rows.place(number), self.rows.place(training_row))
        leak.require(leak.rows)


def _question_text(row: Any, plain_text: bool, columns: PairColumns | None) -> str:
    """The question of a row, or the text itself of plain text; RowError if it cannot be used."""
    if plain_text and is_stream(row):
        content = stream_content(row)
        return content if isinstance(content, str) else str(content.ids.tolist())
    return question_of(row_to_messages(row, None, columns))


def _sample(heading: str, texts: Mapping[str, str]) -> list[str]:
    """The lines that show a row as an example: one for each of its texts by role."""
    lines = ["", heading]
    for role, text in texts.items():
        lines.append(f"  {role}: {escaped(text[:_SHOWN_CHARACTERS])}")
    return lines
