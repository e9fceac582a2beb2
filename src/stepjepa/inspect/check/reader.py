"""Reading the rows of a data set and counting what is in their text, in one process or several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import compress, islice
from typing import Any, NamedTuple

from stepjepa.data.chat import row_to_messages
from stepjepa.data.columns import is_stream, left_over, trained_answers
from stepjepa.data.encode import CHUNK_ROWS, CheckedChat, Encoded, EncodeOptions, PlacedRow, RowEncoder, render_checked
from stepjepa.data.options import PairColumns
from stepjepa.data.prepare.rows import question_of
from stepjepa.data.report import StepCounts
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import StepSplitter, rules_for
from stepjepa.data.token_rows import stream_content
from stepjepa.errors import RowError, attempted
from stepjepa.inspect.check.texts import SHOWN_CHARACTERS, Leak, RowSample, TextStatistics, hashed_question
from stepjepa.training.options import JEPAOptions
from stepjepa.utils.parallel import mapped, twice


class _Counted(NamedTuple):
    """What is counted in a chunk of rows.

    Attributes:
        texts: statistics of the chunk.
        questions: the hash of each row's question, None where there is none.
        encoded: the examples of the rows; None without an encoder.
    """

    texts: TextStatistics
    questions: list[int | None]
    encoded: Encoded | None


@dataclass
class _TextCounter:
    """Counts chunks of rows, each by itself, so that they may be counted in any process.

    Attributes:
        empty: statistics of no rows.
        usual: the splitter that ``auto`` chooses.
        show: how many rows to keep as samples.
        encoder: makes the examples of the rows, where there is one.
    """

    empty: TextStatistics
    options: EncodeOptions
    usual: StepSplitter
    show: int
    encoder: RowEncoder | None = None

    def __call__(self, rows: Sequence[PlacedRow]) -> _Counted:
        """Count a chunk; with `strict_data` a DataError for an unusable row."""
        texts, questions = deepcopy(self.empty), list[int | None]()
        is_text = [texts.plain_text and is_stream(row) for _, row in rows]
        chat_rows = [row for (_, row), text in zip(rows, is_text, strict=True) if not text]
        chats = [attempted(CheckedChat.of, row, self.options, True) for row in chat_rows]
        if self.encoder is not None and chats:  # what the model gets is counted, which may be less than the rows hold
            chats = render_checked(chat_rows, chats, self.encoder.chats, self.options.rules)

        following = iter(chats)
        for (place, row), text in zip(rows, is_text, strict=True):
            if text:
                question = attempted(self._count_text, texts, place, row)
            else:
                question = attempted(self._count_chat, texts, place, next(following))
            if isinstance(question, RowError):
                texts.skip(question, place, self.options.strict_data)
                question = None
            questions.append(question)
        texts.rows_read = len(rows)
        texts.rows_usable = len(rows) - texts.rows_skipped.total()
        encoded = None if self.encoder is None else self.encoder(rows, chats)
        return _Counted(texts, questions, encoded)

    def _count_chat(self, texts: TextStatistics, place: str, chat: CheckedChat | RowError) -> int | None:
        """Count a chat; the hash of its question. Raises the RowError that it is, or has instead of its steps."""
        if isinstance(chat, RowError):
            raise chat
        if isinstance(chat.steps, RowError):
            raise chat.steps
        assert chat.steps is not None  # they were asked for
        texts.see_left_over(chat.rest)
        texts.steps.count(place, chat.steps)
        trained = trained_answers(chat.messages)
        answers = list(compress(chat.answers, trained))
        steps = [len(spans) for spans in compress(chat.steps.spans, trained)]
        texts.step_counts[max(steps)] += 1
        texts.pairs_first += sum(count >= 2 for count in steps)
        texts.pairs_all += sum(count - 1 for count in steps if count)
        for name in texts.other_splitters:
            texts.other_splitters[name] += any(len(self.usual.spans(answer)) >= 2 for answer in answers)

        roles = tuple(message["role"] for message in chat.messages)
        texts.role_orders[", ".join(roles)] += 1
        if len(texts.samples) < self.show:
            shown = {}
            user = next((message["content"] for message in chat.messages if message["role"] == "user"), None)
            if user is not None:
                shown["User"] = _cut(user)
            shown["Assistant"] = _cut(answers[0])
            texts.samples.append(RowSample(place, roles, shown, steps[0]))
        question = hashed_question(question_of(chat.messages))
        texts.rows_with_question += question is not None
        return question

    def _count_text(self, texts: TextStatistics, place: str, row: Mapping[str, Any]) -> int | None:
        """Count a row of plain text; the hash of its text. RowError if it cannot be used."""
        text = _asked(row, True, None)
        texts.see_left_over(left_over(row, ()))
        texts.streams["Plain text" if row.get("input_ids") is None else "Token ids"] += 1
        if len(texts.samples) < self.show:
            texts.samples.append(RowSample(place, (), {"Text": _cut(text)}))
        return hashed_question(text)


class TextReader:
    """Reads the rows of a data set and counts what is in their text: messages, steps and what there is to warn of.

    As in training, the first row decides whether the data set is one of chats or of plain text.

    Args:
        rows: of the data set.
        method: how they become chats, and how their steps are found.
        show: how many usable ones to keep as samples.

    Attributes:
        texts: the statistics of what has been read.

    Raises:
        DataError: a source is missing or empty.
        ConfigError: an unknown splitter, or an empty separator.
    """

    def __init__(self, rows: RowSource, method: JEPAOptions, show: int = 1):
        columns = method.columns
        rules = rules_for(rows, method.step_splitter, method.step_separator, method.steps_column, columns)
        usual = rules_for(rows, "auto", column=method.steps_column, columns=columns).splitter
        reads_separator = rules.splitter.reads_separator and not rules.required
        empty = TextStatistics(
            rows.name,
            rules.name,
            rules.splitter.separator if reads_separator else "",
            rows.files,
            plain_text=columns is None and is_stream(next((row for _, row in rows), None)),
            steps=StepCounts.of(rules),
        )
        if rules.required or usual != rules.splitter:
            empty.other_splitters[usual.name] = 0
        self.rows, self.texts = rows, deepcopy(empty)
        self._counter = _TextCounter(empty, EncodeOptions.of(method, rules=rules), usual, show)

    def read(self, processes: int = 1, encoder: RowEncoder | None = None) -> Iterator[tuple[list[Any], Any]]:
        """Chunks of the numbered rows, and what the encoder, where there is one, makes of each.

        Raises:
            DataError: the source is broken or without a usable row, or with ``strict_data`` the first bad row.
        """
        rows, texts, numbered = self.rows, self.texts, iter(self.rows)
        counter = replace(self._counter, encoder=encoder)
        ahead, chunks = twice(iter(lambda: list(islice(numbered, CHUNK_ROWS)), []))
        placed = ([(rows.place(number), row) for number, row in chunk] for chunk in ahead)
        results = mapped(counter, placed, processes, "num_proc")
        for counted, chunk in zip(results, chunks, strict=False):
            missing = counter.show - len(texts.samples)
            texts.samples += counted.texts.samples[:missing]
            texts.add(counted.texts)
            for (number, _), question in zip(chunk, counted.questions, strict=True):
                if question is not None:
                    texts.repeats.count(rows, number, question)
            yield chunk, counted.encoded
        texts.require(texts.rows_usable)

    def compare(self, others: RowSource) -> None:
        """Count the rows of another data set whose question is in this one, which has been read."""
        leak = self.texts.leak = Leak(others.name)
        for number, row in others:
            leak.rows_read += 1
            question = attempted(_asked, row, self.texts.plain_text, self._counter.options.columns)
            if isinstance(question, RowError):
                leak.skip(question, others.place(number))
                continue
            leak.rows += 1
            known = self.texts.repeats.find(question)
            if known is not None:
                leak.found += 1
                leak.first = leak.first or (others.place(number), self.rows.place(known))
        leak.require(leak.rows)


def _asked(row: Any, plain_text: bool, columns: PairColumns | None) -> str:
    """What a row asks; of plain text the text itself. RowError if it cannot be used."""
    if plain_text and is_stream(row):
        content = stream_content(row)
        return content if isinstance(content, str) else " ".join(map(str, content.ids.tolist()))
    return question_of(row_to_messages(row, None, columns))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
