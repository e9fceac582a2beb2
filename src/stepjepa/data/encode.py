"""From a data set to its examples: read, render, tokenise, label and pair."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from stepjepa.data.chat import ChatRenderer, RenderedChat, RowError
from stepjepa.data.examples import Example, ExampleStore
from stepjepa.data.labels import label_spans
from stepjepa.data.options import EncodeOptions
from stepjepa.data.pairing import chat_pairs, stream_pairs, usable_pairs
from stepjepa.data.report import DataReport
from stepjepa.data.sources import PairColumns, RowSource, row_to_messages
from stepjepa.data.steps import choose_splitter
from stepjepa.data.streams import blocks, is_stream, stream_ids
from stepjepa.data.tokens import TokenSpan, TurnEnds, check_tokenizer, encode_apart, encode_texts, token_span
from stepjepa.data.views import Turn
from stepjepa.errors import DataError

_CHUNK_ROWS = 1000
_SPLITTER_ROWS = 200
Chat = tuple[str, list[dict[str, str]], RenderedChat]  # place, messages, rendering


def encode_dataset(
    source: Any, tokenizer: Any, renderer: ChatRenderer | None, options: EncodeOptions, split: str = "train"
) -> tuple[ExampleStore, DataReport]:
    """Read, render, tokenise and pair a whole data set.

    The first row decides whether the data set is one of chats or of plain text.

    Args:
        source: what `RowSource` takes.
        tokenizer: a fast Hugging Face tokenizer.
        renderer: None where the tokenizer has no chat template, which plain text does not need.

    Returns:
        The examples and the report on them.

    Raises:
        DataError: nothing to read, nothing left to train on, or with ``strict`` the first row that cannot be used.
        ConfigError: a tokenizer without offsets, or chats without a template.
    """
    check_tokenizer(tokenizer)
    rows = source if isinstance(source, RowSource) else RowSource(source, split)
    encoder = _Encoder(tokenizer, renderer, options, DataReport(rows.name))
    digest = hashlib.sha256()
    chunk: list[Chat] = []
    examples: list[Example] = []
    report = encoder.report
    streams: bool | None = None
    for number, row in rows:
        report.rows_read += 1
        place = rows.place(number)
        if streams is None:
            streams = options.columns is None and is_stream(row)
            if streams and options.objective not in ("regular", "split"):
                found = ", ".join(map(str, row))
                raise DataError(
                    f"{place}: columns found: {found}; {options.objective} needs chats (messages, question/answer, "
                    "prompt/completion or text/code); plain text trains with --objective split or regular"
                )
        try:
            if streams and is_stream(row):
                ids = stream_ids(row, tokenizer)
                digest.update(ids.tobytes())
                examples += encoder.stream(place, ids)
                continue
            messages = row_to_messages(row, options.system_prompt, options.columns)
            digest.update(json.dumps(messages).encode())
            chunk.append((place, messages, encoder.chats.render(messages)))
        except RowError as error:
            encoder.refuse(error.reason, place, str(error))
        if len(chunk) == _CHUNK_ROWS:
            examples += encoder.encode(chunk)
            chunk = []
    examples += encoder.encode(chunk)
    report.fingerprint = digest.hexdigest()[:16]
    report.end_of_turn = "" if streams else encoder.end_of_turn()
    report.rows_kept = report.rows_read - sum(report.rows_skipped.values())
    report.examples = len(examples)
    if not report.rows_read:
        raise DataError(f"{rows.name}: the file or data set is empty; it needs at least one row")
    if not examples:
        first = next(iter(report.first_skipped.values()))
        raise DataError(f"no row can be trained on: {report.rows_read} read, all skipped; first: {first}")
    store = ExampleStore(examples)
    report.pairs = store.num_pairs
    report.set_lengths(store.lengths)
    return store, report


def find_splitter(
    source: RowSource, separator: str = "\n\n", columns: PairColumns | None = None
) -> tuple[str, int, int]:
    """The step splitter that serves a data set's first rows (``step_splitter=auto``), see `steps.choose_splitter`.

    Returns:
        Its name, the answers in which it finds two or more steps, and the answers that were looked at.
    """
    answers: list[str] = []
    for _, row in islice(source, _SPLITTER_ROWS):
        try:
            messages = row_to_messages(row, None, columns)
        except RowError:
            continue
        answers += (message["content"] for message in messages if message["role"] == "assistant")
    return *choose_splitter(answers, separator), len(answers)


class _Encoder:
    """Turns rendered chats and token streams into examples and counts what happens to them."""

    def __init__(self, tokenizer: Any, renderer: ChatRenderer | None, options: EncodeOptions, report: DataReport):
        self.tokenizer, self.options, self.report = tokenizer, options, report
        self.renderer = renderer
        self.ends = TurnEnds(tokenizer)
        self.appended_eos = False
        self.end_id: int | None = None

    @cached_property
    def chats(self) -> ChatRenderer:
        """The renderer; asked for by the first chat, because plain text needs none."""
        return self.renderer or ChatRenderer(self.tokenizer)

    def refuse(self, reason: str, place: str, message: str) -> None:
        """Skip a row, or with ``strict`` stop at it."""
        message = " ".join(message.split())  # names of columns and a template's own words may hold line breaks
        if self.options.strict:
            raise DataError(f"{place}: {message} (--strict_data stops at the first such row)")
        self.report.skip(reason, place, message)

    def end_of_turn(self) -> str:
        """The end-of-turn token in words."""
        if self.end_id is None:
            return "none: the template writes no special token behind an answer and the tokenizer has no EOS"
        token = self.tokenizer.convert_ids_to_tokens(self.end_id)
        return f"{token} (the tokenizer's EOS, appended: the template writes none)" if self.appended_eos else str(token)

    def encode(self, chunk: list[Chat]) -> list[Example]:
        """Examples of one chunk of rendered chats."""
        if not chunk:
            return []
        examples = []
        texts = [self._closed_text(chat) for _, _, chat in chunk]
        encoded = encode_texts(self.tokenizer, texts)
        for (place, messages, chat), text, (ids, last) in zip(chunk, texts, encoded, strict=True):
            if not self.template_ends_turns:
                ids, last = self._apart(chat, text, ids, last)
            example = self._example(place, messages, chat, ids, last)
            if example is not None:
                examples.append(self._counted(example))
                self.report.system_folded += chat.folded_system
        return examples

    def stream(self, place: str, ids: np.ndarray) -> list[Example]:
        """Examples of one row of plain text: blocks that are labelled whole."""
        limit = min(self.options.max_length, self.options.max_positions or self.options.max_length)
        pieces = blocks(ids, limit)
        if not pieces:
            self.refuse("nothing_to_learn", place, "the text has fewer than two tokens")
        examples = []
        for piece in pieces:
            found = stream_pairs(self.options, piece)
            pairs, views = usable_pairs(self.options, found, len(piece), self.report)
            examples.append(self._counted(Example(piece, ((1, len(piece)),), tuple(pairs), views)))
        return examples

    def _counted(self, example: Example) -> Example:
        self.report.labelled_tokens += sum(stop - start for start, stop in example.label_spans)
        self.report.target_tokens += sum(pair.target_end - pair.target_start for pair in example.pairs)
        return example

    @cached_property
    def template_ends_turns(self) -> bool:
        """Whether the template writes an end-of-turn token behind a last answer."""
        try:
            chat = self.chats.render([{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}])
        except RowError:
            return True
        tail = self.tokenizer(chat.text[chat.spans[-1].end :], add_special_tokens=False)["input_ids"]
        return self.ends.find(np.asarray(tail, dtype=np.int64), 0, len(tail)) is not None

    def _appends_eos(self, chat: RenderedChat) -> bool:
        last_is_answer = chat.spans[-1].role == "assistant"
        return last_is_answer and not self.template_ends_turns and self.tokenizer.eos_token_id is not None

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

    def _example(
        self, place: str, messages: list[dict[str, str]], chat: RenderedChat, ids: np.ndarray, last: np.ndarray
    ) -> Example | None:
        limit = self.options.max_length
        turns, ids = self._turns(chat, ids, last)
        ends = {self.end_id, self.tokenizer.eos_token_id, self.tokenizer.pad_token_id} - {None}
        spans = label_spans(self.options.labels, ids, turns, ends, limit)
        if not spans:
            first = turns[0].answer[0]
            if first < limit:
                self.refuse("nothing_to_learn", place, "the answer is empty, and nothing ends its turn; fill it in")
            else:
                message = f"the prompt has {first} tokens and max_length is {limit}; raise --max_length"
                self.refuse("no_room_for_answer", place, message)
            return None
        if max(turn.label_stop for turn in turns) > limit:
            if self.options.strict:
                raise DataError(
                    f"{place}: the chat has {len(ids)} tokens and max_length is {limit}, so the answer would be cut; "
                    "raise --max_length or drop --strict_data"
                )
            self.report.answers_truncated += 1
        trunk = ids[:limit]
        found = chat_pairs(self.options, turns, messages, trunk, self.tokenizer, self.chats)
        pairs, views = usable_pairs(self.options, found, len(trunk), self.report)
        return Example(trunk, spans, tuple(pairs), views)

    def _turns(self, chat: RenderedChat, ids: np.ndarray, last: np.ndarray) -> tuple[list[Turn], np.ndarray]:
        """The assistant turns in tokens, and the ids with an EOS behind them where the template writes no end of turn."""
        turns: list[Turn] = []
        user: tuple[TokenSpan, int] | None = None
        for index, span in enumerate(chat.spans):
            following = chat.spans[index + 1].start if index + 1 < len(chat.spans) else len(chat.text)
            content = token_span(last, span.start, span.end)
            mark = self.ends.find(ids, content[1], token_span(last, following, following)[0])
            if mark is not None and span.role == "assistant" and not self.template_ends_turns:
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
            steps: tuple[TokenSpan, ...] = ()
            if self.options.objective == "step_jepa":
                found = self.options.splitter.spans(chat.text[span.start : span.end])
                steps = tuple(token_span(last, span.start + a, span.start + b) for a, b in found)
            turns.append(Turn(user[0] if user else None, user[1] if user else 0, content, close, steps))
        return turns, ids
