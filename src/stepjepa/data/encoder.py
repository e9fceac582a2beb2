"""From rows to examples: render, tokenise, label and pair, a chunk of rows at a time, in whatever process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from stepjepa.data.chat import ChatRenderer, MessageSpan, RenderedChat, RowError
from stepjepa.data.examples import Example, ExampleStore
from stepjepa.data.labels import label_spans
from stepjepa.data.options import EncodeOptions
from stepjepa.data.pairing import chat_pairs, stream_pairs, usable_pairs
from stepjepa.data.report import DataReport, StepCounts
from stepjepa.data.sources import ANSWER_COLUMNS, listed_steps, row_to_messages
from stepjepa.data.steps import RowSteps, join_steps, steps_of
from stepjepa.data.streams import blocks, is_stream, stream_ids
from stepjepa.data.tokens import (
    TokenSpan,
    TurnEnds,
    check_tokenizer,
    encode_apart,
    encode_texts,
    template_turn_end,
    token_span,
)
from stepjepa.data.views import Turn
from stepjepa.errors import DataError

PlacedRow = tuple[str, Any]  # where the row stands in words, the row


class ReadChat(NamedTuple):
    """A row as a chat.

    Attributes:
        messages: checked.
        rendered: as the template writes it.
        steps: of its answers, as they stand in `rendered`; None for objectives that need none.
    """

    messages: list[dict[str, str]]
    rendered: RenderedChat
    steps: RowSteps | None

    @property
    def answers(self) -> list[MessageSpan]:
        """Where the answers stand."""
        return [span for span in self.rendered.spans if span.role == "assistant"]


def chat_of(row: Any, options: EncodeOptions) -> list[dict[str, str]]:
    """The checked chat of a row; of one that is only to give its steps, which hold the answer, these as the answer.

    Raises:
        RowError: the row holds no chat, or not the list of steps that is needed.
    """
    rules = options.rules
    if rules.required and isinstance(row, Mapping) and not any(name in row for name in ("messages", *ANSWER_COLUMNS)):
        row = {**row, "answer": join_steps(listed_steps(row, str(rules.column)))[0]}
    return row_to_messages(row, options.system_prompt, options.columns)


def read_chat(row: Any, renderer: ChatRenderer, options: EncodeOptions) -> ReadChat:
    """A row rendered, with its steps.

    Raises:
        RowError: the row holds no chat, or not the steps that it must hold, or the template refuses it.
    """
    messages = chat_of(row, options)
    read = ReadChat(messages, renderer.render(messages), None)
    if options.objective != "step_jepa":
        return read
    answers = [read.rendered.text[span.start : span.end] for span in read.answers]
    return read._replace(steps=steps_of(row, answers, options.rules))


class Encoded(NamedTuple):
    """A chunk of rows as examples.

    Attributes:
        counts: examples of each row: 0 for one that is refused, several for a long text.
        store: the examples, in the rows' order.
        report: on these rows alone.
        digest: those of what each row holds, one behind the other.
    """

    counts: list[int]
    store: ExampleStore
    report: DataReport
    digest: bytes


class RowEncoder:
    """Turns chunks of rows into examples; each by itself, so that chunks may be encoded anywhere and in any order.

    Args:
        name: of the data set.
        tokenizer: a Hugging Face tokenizer.
        renderer: None where the tokenizer has no chat template, which plain text does not need.
        streams: whether the data set is one of plain text, not of chats.

    Raises:
        ConfigError: a tokenizer that cannot be used.
    """

    def __init__(self, name: str, tokenizer: Any, renderer: ChatRenderer | None, options: EncodeOptions, streams: bool):
        check_tokenizer(tokenizer)
        self.name, self.tokenizer, self.options, self.streams = name, tokenizer, options, streams
        self.renderer = renderer
        self.ends = TurnEnds(tokenizer)

    def __call__(self, rows: Sequence[PlacedRow]) -> Encoded:
        """The examples of a chunk.

        Raises:
            DataError: with ``strict`` the first row that cannot be used.
            ConfigError: chats without a template.
        """
        return _Chunk(self).encode(rows)

    @cached_property
    def chats(self) -> ChatRenderer:
        """The renderer; asked for by the first chat, because plain text needs none."""
        return self.renderer or ChatRenderer(self.tokenizer)

    def new_counts(self) -> StepCounts:
        """Where the steps of the data set come from, nothing counted yet."""
        needed = self.options.objective == "step_jepa" and not self.streams
        return StepCounts.of(self.options.rules) if needed else StepCounts()

    @cached_property
    def template_ends_turns(self) -> bool:
        """Whether the template writes an end-of-turn token behind a last answer."""
        try:
            return template_turn_end(self.tokenizer, self.chats) is not None
        except RowError:
            return True


class _Chunk:
    """What is counted while one chunk is encoded."""

    def __init__(self, encoder: RowEncoder):
        self.encoder, self.options, self.tokenizer = encoder, encoder.options, encoder.tokenizer
        self.report = DataReport(encoder.name, steps=encoder.new_counts())
        self.end_id: int | None = None
        self.appended_eos = False

    def encode(self, rows: Sequence[PlacedRow]) -> Encoded:
        """See `RowEncoder.__call__`."""
        digests: list[bytes] = []
        examples: list[list[Example]] = [[] for _ in rows]
        chats: list[tuple[int, str, ReadChat]] = []
        for index, (place, row) in enumerate(rows):
            try:
                if self.encoder.streams and is_stream(row):
                    ids = stream_ids(row, self.tokenizer)
                    digests.append(hashlib.sha256(ids.tobytes()).digest())
                    examples[index] = self._stream(place, ids)
                    continue
                chat = read_chat(row, self.encoder.chats, self.options)
                digests.append(_digest(chat))
                chats.append((index, place, chat))
            except RowError as error:
                self._refuse(error.reason, place, str(error))
        found = self._chats([(place, chat) for _, place, chat in chats])
        for (index, *_), example in zip(chats, found, strict=True):
            examples[index] = [] if example is None else [example]
        store = ExampleStore([example for several in examples for example in several])
        report = self.report
        report.rows_read, report.examples, report.pairs = len(rows), len(store), store.num_pairs
        report.rows_kept = report.rows_read - sum(report.rows_skipped.values())
        report.end_of_turn = "" if self.encoder.streams or not found else self._end_of_turn()
        return Encoded([len(several) for several in examples], store, report, b"".join(digests))

    def _refuse(self, reason: str, place: str, message: str) -> None:
        """Skip a row, or with ``strict`` stop at it."""
        message = " ".join(message.split())  # names of columns and a template's own words may hold line breaks
        if self.options.strict:
            raise DataError(f"{place}: {message} (--strict_data stops at the first such row)")
        self.report.skip(reason, place, message)

    def _end_of_turn(self) -> str:
        """The end-of-turn token in words."""
        if self.end_id is None:
            return "none: the template writes no special token behind an answer and the tokenizer has no EOS"
        token = self.tokenizer.convert_ids_to_tokens(self.end_id)
        return f"{token} (the tokenizer's EOS, appended: the template writes none)" if self.appended_eos else str(token)

    def _chats(self, chats: list[tuple[str, ReadChat]]) -> list[Example | None]:
        """An example of each chat, None for one that is refused."""
        texts = [self._closed_text(chat.rendered) for _, chat in chats]
        examples: list[Example | None] = []
        for (place, chat), text, tokens in zip(chats, texts, self._tokens(texts), strict=True):
            example = None
            try:
                if isinstance(tokens, RowError):
                    raise tokens
                if not self.encoder.template_ends_turns:
                    tokens = self._apart(chat.rendered, text, *tokens)
                example = self._example(place, chat, *tokens)
                self._count(example)
                if chat.steps is not None:
                    self.report.steps.count(place, chat.steps)
                self.report.system_folded += chat.rendered.folded_system
                self.report.see_system_prompt(chat.messages)
            except RowError as error:
                self._refuse(error.reason, place, str(error))
            examples.append(example)
        return examples

    def _tokens(self, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray] | RowError]:
        """`encode_texts`, with what is wrong in the place of a text that cannot be aligned with its tokens."""
        try:
            return list(encode_texts(self.tokenizer, texts)) if texts else []
        except RowError as error:
            return [error] if len(texts) == 1 else [self._tokens([text])[0] for text in texts]

    def _stream(self, place: str, ids: np.ndarray) -> list[Example]:
        """Examples of one row of plain text: blocks that are labelled whole."""
        limit = min(self.options.max_length, self.options.max_positions or self.options.max_length)
        pieces = blocks(ids, limit)
        if not pieces:
            self._refuse("nothing_to_learn", place, "the text has fewer than two tokens")
        examples = []
        for piece in pieces:
            found = stream_pairs(self.options, piece)
            pairs, views = usable_pairs(self.options, found, len(piece), self.report)
            examples.append(Example(piece, ((1, len(piece)),), tuple(pairs), views))
            self._count(examples[-1])
        return examples

    def _count(self, example: Example) -> None:
        self.report.labelled_tokens += sum(stop - start for start, stop in example.label_spans)
        self.report.target_tokens += sum(pair.target_end - pair.target_start for pair in example.pairs)

    def _appends_eos(self, chat: RenderedChat) -> bool:
        last_is_answer = chat.spans[-1].role == "assistant"
        return last_is_answer and not self.encoder.template_ends_turns and self.tokenizer.eos_token_id is not None

    def _closed_text(self, chat: RenderedChat) -> str:
        """The text to tokenise: where an EOS takes the place of what the template writes behind the last answer, that
        is cut off, or a tokenizer may merge the answer's last character with it (``.`` and a line break)."""
        return chat.text[: chat.spans[-1].end] if self._appends_eos(chat) else chat.text

    def _apart(self, chat: RenderedChat, text: str, ids: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens that do not merge the end of an answer with the template's text behind it.

        Needed only where no end-of-turn token stands between: the answer's last token would be lost to the labels.
        """
        ends = [span.end for span in chat.spans if span.role == "assistant" and span.start < span.end < len(text)]
        if all(last[token_span(last, end, end)[0] - 1] == end - 1 for end in ends):
            return ids, last
        return encode_apart(self.tokenizer, text, ends)

    def _example(self, place: str, chat: ReadChat, ids: np.ndarray, last: np.ndarray) -> Example:
        limit = self.options.max_length
        turns, ids = self._turns(chat, ids, last)
        ends = {self.end_id, self.tokenizer.eos_token_id, self.tokenizer.pad_token_id} - {None}
        spans = label_spans(self.options.labels, ids, turns, ends, limit)
        if not spans:
            first = turns[0].answer[0]
            if first < limit:
                raise RowError("nothing_to_learn", "the answer is empty, and nothing ends its turn; fill it in")
            raise RowError(
                "no_room_for_answer", f"the prompt has {first} tokens and max_length is {limit}; raise --max_length"
            )
        if max(turn.label_stop for turn in turns) > limit:
            if self.options.strict:
                raise DataError(
                    f"{place}: the chat has {len(ids)} tokens and max_length is {limit}, so the answer would be cut; "
                    "raise --max_length or drop --strict_data"
                )
            self.report.answers_truncated += 1
        trunk = ids[:limit]
        found = chat_pairs(self.options, turns, chat.messages, trunk, self.tokenizer, self.encoder.chats)
        pairs, views = usable_pairs(self.options, found, len(trunk), self.report)
        return Example(trunk, spans, tuple(pairs), views)

    def _turns(self, row: ReadChat, ids: np.ndarray, last: np.ndarray) -> tuple[list[Turn], np.ndarray]:
        """The assistant turns in tokens, and the ids with an EOS behind them where the template writes no end of turn."""
        chat, turns = row.rendered, list[Turn]()
        user: tuple[TokenSpan, int] | None = None
        for index, span in enumerate(chat.spans):
            following = chat.spans[index + 1].start if index + 1 < len(chat.spans) else len(chat.text)
            content = token_span(last, span.start, span.end)
            mark = self.encoder.ends.find(ids, content[1], token_span(last, following, following)[0])
            if mark is not None and span.role == "assistant" and not self.encoder.template_ends_turns:
                # A marker that opens the next turn is none that ends this one, unless it is the EOS itself.
                mark = mark if ids[mark] == self.tokenizer.eos_token_id else None
            close = content[1] if mark is None else mark + 1
            if span.role == "user":
                user = (content, close)
            if span.role != "assistant":
                continue
            if mark is not None:
                self.end_id = int(ids[mark])
            elif index + 1 == len(chat.spans) and self._appends_eos(chat):
                ids = np.append(ids, np.int32(self.tokenizer.eos_token_id))
                close, self.end_id, self.appended_eos = len(ids), self.tokenizer.eos_token_id, True
            found = row.steps.spans[len(turns)] if row.steps is not None else []
            steps = tuple(token_span(last, span.start + a, span.start + b) for a, b in found)
            turns.append(Turn(user[0] if user else None, user[1] if user else 0, content, close, steps))
        return turns, ids


def _digest(chat: ReadChat) -> bytes:
    """A digest of a row's messages, and of its steps where they matter."""
    parts: Any = chat.messages if chat.steps is None else [chat.messages, chat.steps.spans]
    return hashlib.sha256(json.dumps(parts).encode()).digest()
