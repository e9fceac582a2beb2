"""From a data set to its examples: read, render, tokenise, label and pair."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepjepa.data.chat import ChatRenderer, RenderedChat, RowError
from stepjepa.data.examples import Example, ExampleStore
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowSource, row_to_messages
from stepjepa.data.steps import StepSplitter
from stepjepa.data.tokens import TokenSpan, TurnEnds, check_tokenizer, encode_apart, encode_texts, token_span
from stepjepa.data.views import Pair, Turn, question_answer_pairs, step_pairs
from stepjepa.errors import DataError

_CHUNK_ROWS = 1000


@dataclass(frozen=True)
class EncodeOptions:
    """How chats become examples.

    Attributes:
        objective: ``regular``, ``llm_jepa`` or ``step_jepa``.
        splitter: finds the steps of an answer (``step_jepa``).
        step_pairs: ``first`` or ``all``.
        last_token: None (by name) or a negative offset; see `views`.
        max_length: longest trunk in tokens; what is longer is cut on the right.
        max_positions: positions that the model has, for learned absolute positions; None for rotary models.
        predictors: K, needed with `max_positions` only.
        system_prompt: put in front of chats that have none.
        strict: a row that cannot be used, or whose answer is cut, is an error instead of a count.
    """

    objective: str
    splitter: StepSplitter
    step_pairs: str = "first"
    last_token: int | None = None
    max_length: int = 1024
    max_positions: int | None = None
    predictors: int = 0
    system_prompt: str | None = None
    strict: bool = False


def encode_dataset(
    source: Any, tokenizer: Any, renderer: ChatRenderer, options: EncodeOptions, split: str = "train"
) -> tuple[ExampleStore, DataReport]:
    """Read, render, tokenise and pair a whole data set.

    Args:
        source: what `RowSource` takes.
        tokenizer: a fast Hugging Face tokenizer.

    Returns:
        The examples and the report on them.

    Raises:
        DataError: nothing to read, nothing left to train on, or with ``strict`` the first row that cannot be used.
        ConfigError: a tokenizer without offsets.
    """
    check_tokenizer(tokenizer)
    rows = source if isinstance(source, RowSource) else RowSource(source, split)
    encoder = _Encoder(tokenizer, renderer, options, DataReport(rows.name))
    digest = hashlib.sha256()
    chunk: list[tuple[str, RenderedChat]] = []
    examples: list[Example] = []
    report = encoder.report
    for number, row in rows:
        report.rows_read += 1
        place = rows.place(number)
        try:
            messages = row_to_messages(row, options.system_prompt)
            digest.update(json.dumps(messages).encode())
            chunk.append((place, renderer.render(messages)))
        except RowError as error:
            encoder.refuse(error.reason, place, str(error))
        if len(chunk) == _CHUNK_ROWS:
            examples += encoder.encode(chunk)
            chunk = []
    examples += encoder.encode(chunk)
    report.fingerprint = digest.hexdigest()[:16]
    report.end_of_turn = encoder.end_of_turn()
    report.rows_kept = len(examples)
    if not report.rows_read:
        raise DataError(f"{rows.name}: the file or data set is empty; it needs at least one row")
    if not examples:
        first = next(iter(report.first_skipped.values()))
        raise DataError(f"no row can be trained on: {report.rows_read} read, all skipped; first: {first}")
    store = ExampleStore(examples)
    report.pairs = store.num_pairs
    report.set_lengths(store.lengths)
    return store, report


class _Encoder:
    """Turns rendered chats into examples and counts what happens to them."""

    def __init__(self, tokenizer: Any, renderer: ChatRenderer, options: EncodeOptions, report: DataReport):
        self.tokenizer, self.renderer, self.options, self.report = tokenizer, renderer, options, report
        self.ends = TurnEnds(tokenizer)
        self.template_ends_turns = self._template_ends_turns()
        self.appended_eos = False
        self.end_id: int | None = None

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

    def encode(self, chunk: list[tuple[str, RenderedChat]]) -> list[Example]:
        """Examples of one chunk of rendered chats."""
        if not chunk:
            return []
        examples = []
        texts = [self._closed_text(chat) for _, chat in chunk]
        encoded = encode_texts(self.tokenizer, texts)
        for (place, chat), text, (ids, last) in zip(chunk, texts, encoded, strict=True):
            if not self.template_ends_turns:
                ids, last = self._apart(chat, text, ids, last)
            example = self._example(place, chat, ids, last)
            if example is not None:
                examples.append(example)
                self.report.system_folded += chat.folded_system
                self.report.labelled_tokens += sum(stop - start for start, stop in example.label_spans)
                self.report.target_tokens += sum(pair.target_end - pair.target_start for pair in example.pairs)
        return examples

    def _template_ends_turns(self) -> bool:
        """Whether the template writes an end-of-turn token behind a last answer."""
        try:
            chat = self.renderer.render([{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}])
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

    def _example(self, place: str, chat: RenderedChat, ids: np.ndarray, last: np.ndarray) -> Example | None:
        limit = self.options.max_length
        turns, ids = self._turns(chat, ids, last)
        spans = [(turn.answer[0], min(turn.label_stop, limit)) for turn in turns]
        spans = [(start, stop) for start, stop in spans if max(start, 1) < stop]
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
        pairs = self._pairs(turns, limit)
        return Example(ids[:limit], tuple(spans), tuple(pairs))

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

    def _pairs(self, turns: list[Turn], limit: int) -> list[Pair]:
        options = self.options
        if options.objective == "regular":
            return []
        if options.objective == "llm_jepa":
            pairs, reason = question_answer_pairs(turns, options.last_token)
        else:
            pairs, reason = step_pairs(turns, options.step_pairs, options.last_token)
        kept = [pair for pair in pairs if pair.target_end <= limit]  # a target stands behind its source
        if len(kept) < len(pairs):
            self.report.pairs_dropped["pair_truncated"] += len(pairs) - len(kept)
            reason = None if kept else "pair_truncated"
        if options.max_positions is not None and kept:
            room, whole = options.max_positions - options.predictors, len(kept)
            kept = [p for p in kept if p.source_end + 1 + p.target_end - p.target_start <= room]
            if len(kept) < whole:
                self.report.pairs_dropped["beyond_positions"] += whole - len(kept)
                reason = None if kept else "beyond_positions"
        if not kept:
            self.report.examples_without_pairs[reason or "empty_view"] += 1
        return kept
