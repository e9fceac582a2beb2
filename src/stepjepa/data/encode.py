"""From rows to examples: read, render, tokenise, label and pair, a chunk at a time, in one process or in several."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from stepjepa.config.option import Names
from stepjepa.data.chat import KNOWN_CHATS, row_to_messages
from stepjepa.data.columns import (
    TOOL,
    Messages,
    answer_column,
    answers_in,
    as_object,
    is_stream,
    is_trained,
    last_trained,
    left_over,
    listed_columns,
    listed_steps,
    target_text,
    template_kwargs_of,
    trained_turns,
)
from stepjepa.data.dataset import ExampleStore
from stepjepa.data.options import DataOptions, ReadingOptions
from stepjepa.data.rendered import RenderedChat
from stepjepa.data.report import LONGER, DataReport, StepCounts
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import CharSpan, RowSteps, StepRules, join_steps, make_splitter, steps_of
from stepjepa.data.template import ChatRenderer
from stepjepa.data.token_rows import StreamRow, stream_row
from stepjepa.data.tokens import (
    TokenisedText,
    check_tokenizer,
    cut_spans,
    encode_apart,
    encode_texts,
    label_spans,
    template_turn_end,
    token_span,
    turn_marks,
)
from stepjepa.data.types import Example, PairsFound, Span, Turn
from stepjepa.errors import DataError, RowError, attempted, no_rows
from stepjepa.utils.files import digest
from stepjepa.utils.parallel import mapped

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Rows that one process encodes at a time, with one call of the tokenizer.
CHUNK_ROWS = 1000
# The place of a row, as messages name it, and the row.
PlacedRow = tuple[str, Any]
_NAME = Names(DataOptions, ReadingOptions)


class TokenChat(NamedTuple):
    """A chat as an objective receives it.

    Attributes:
        ids: (T,) int32, its tokens before any cut; `trunk`: those that remain after the cut.
        tokenizer, renderer: to render and tokenise other texts.
        target: the text of the target view, from a column. It belongs to the last answer, which is then the only one in
            `turns`. None for views of the chat.
        labels: the tokens of the LM loss, as spans of `trunk`.
    """

    ids: np.ndarray
    trunk: np.ndarray
    turns: Sequence[Turn]
    messages: Sequence[dict[str, str]]
    tokenizer: PreTrainedTokenizerBase
    renderer: ChatRenderer
    target: str | None = None
    labels: tuple[Span, ...] = ()

    @property
    def target_ids(self) -> np.ndarray | None:
        """(S,) int32, the tokens of `target`, encoded separately."""
        return None if self.target is None else encode_texts(self.tokenizer, [self.target])[0][0]


class PairMaker(Protocol):
    """The part of an objective that turns rows into examples; see `objectives.base.Objective`."""

    name: ClassVar[str]
    takes_text: ClassVar[bool]
    options: Any

    @property
    def needs_steps(self) -> bool:
        """Whether the objective needs the steps of the answers."""

    @property
    def one_pair(self) -> bool:
        """Whether an example keeps only its first pair."""

    @property
    def target_column(self) -> str | None:
        """The column with the text of the target views; None for views of the chat."""

    def cue_of(self, answer: str) -> CharSpan | None:
        """The span of the final answer's cue in the text of an answer, for `Turn.cue`."""

    def pairs_of(self, chat: TokenChat) -> PairsFound:
        """The pairs of a chat."""

    def pairs_of_text(self, trunk: np.ndarray) -> PairsFound:
        """The pairs of a piece of plain text of (T,) tokens."""

    def pairs_between(self, source: Span, target: Span) -> int:
        """The number of pairs from two views on the trunk, for the data report."""


@dataclass
class EncodeOptions(DataOptions):
    """How rows become examples: the data options, and values that follow from the other options of a run.

    Attributes:
        objective: finds the pairs; None for no pairs.
        rules: how the rows are split into steps, for objectives that need them.
        max_positions: the number of learned absolute positions of the model; None for rotary positions.
        vocabulary: rows of the model's embedding; None if no model is known.
    """

    objective: PairMaker | None = None
    rules: StepRules = field(default_factory=lambda: StepRules(make_splitter("separator")))
    max_positions: int | None = None
    vocabulary: int | None = None

    @classmethod
    def of(cls, options: DataOptions, **attributes: Any) -> EncodeOptions:
        """Take the data options from the options of a run, and add `attributes`."""
        values = {field.name: getattr(options, field.name) for field in fields(DataOptions)}
        return cls(**values | attributes)

    @property
    def needs_steps(self) -> bool:
        """Whether the steps of the answers are needed."""
        return self.objective is not None and self.objective.needs_steps


class CheckedChat(NamedTuple):
    """The chat of a row.

    Attributes:
        messages: checked, see `data.chat.check_messages`.
        answers: the texts of its answers, without messages that call tools; in a rendered chat, as the template writes
            them, perhaps without some part.
        steps: the steps of the answers, or the reason why there are none; None if they are not needed.
        target: the text of the column of target views, or the reason why there is none; None without such a column.
        template_kwargs: the chat template's arguments for this row.
        unread: names of the parts of the row with text that is not trained on.
        rendered: the chat as the template writes it; None before rendering.
    """

    messages: Messages
    answers: list[str]
    steps: RowSteps | RowError | None
    target: str | RowError | None = None
    template_kwargs: Mapping[str, Any] = {}
    unread: Sequence[str] = ()
    rendered: RenderedChat | None = None

    @classmethod
    def of(
        cls, row: object, options: EncodeOptions, steps: bool, renderer: ChatRenderer | None = None
    ) -> CheckedChat:
        """Read the chat of a row, and render it if there is a renderer; RowError if the row has no chat, or it cannot be
        rendered.

        In a row with a list of steps and no answer, the steps are the answer.
        """
        rules = options.rules
        row = complete = as_object(row)
        if rules.required:
            column = answer_column(row)
            if column not in row:
                complete = {**row, column: join_steps(listed_steps(row, str(rules.column)))}
        messages = row_to_messages(complete, options.system_prompt, options.columns)
        if options.train_on == "last":
            messages = last_trained(messages)
        if not any(trained_turns(messages)):
            raise RowError(
                "switched_off",
                "every answer that could be trained on is switched off (weight 0 or similar)",
            )

        answers = [message["content"] for message in answers_in(messages)]
        template_kwargs = template_kwargs_of(row)
        rendered = None
        # A template may strip an answer or drop its thinking, so steps are searched for in the text that the model reads.
        if renderer is not None:
            rendered = renderer.using(template_kwargs).render(messages)
            answers = [
                rendered.text[span.start : span.end]
                for span in rendered.turns
                if span.close is None
            ]
        target_column = None if options.objective is None else options.objective.target_column
        # If the user names the columns of the views, the other columns are left out on purpose.
        unread: Sequence[str] = ()
        if options.columns is None:
            unread = left_over(row, messages, {rules.column, target_column})
        return cls(
            messages,
            answers,
            steps=attempted(steps_of, row, answers, rules) if steps else None,
            target=target_text(row, target_column) if target_column else None,
            template_kwargs=template_kwargs,
            unread=unread,
            rendered=rendered,
        )

    @property
    def shown(self) -> RenderedChat:
        """The chat as the template writes it; the chat must have been rendered."""
        assert self.rendered is not None
        return self.rendered

    @property
    def step_spans(self) -> list[list[CharSpan]] | None:
        """The steps of each answer, in characters of the answer; None if they are not needed."""
        return self.steps.spans if isinstance(self.steps, RowSteps) else None


class Encoded(NamedTuple):
    """A chunk of rows as examples.

    Attributes:
        counts: examples of each row: 0 for a skipped row, several for a long text.
        store: the examples, in the rows' order.
        report: the report on these rows only.
        digest: the digests of the rows, concatenated.
    """

    counts: list[int]
    store: ExampleStore
    report: DataReport
    digest: bytes


@dataclass
class RowEncoder:
    """Turns chunks of rows into examples. No chunk depends on another, so processes can encode them in any order.

    Attributes:
        renderer: None if the tokenizer has no chat template, which plain text does not need.
        streams: whether the data set has plain text instead of chats.

    Raises:
        ConfigError: a tokenizer that cannot be used.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase
    renderer: ChatRenderer | None
    options: EncodeOptions
    streams: bool

    def __post_init__(self) -> None:
        check_tokenizer(self.tokenizer)
        self.marks = turn_marks(self.tokenizer)
        # Looked up once: a tokenizer's special tokens go through `__getattr__`, which is slow.
        self.eos: int | None = self.tokenizer.eos_token_id
        self.end_ids = {self.eos, self.tokenizer.pad_token_id} - {None}

    @cached_property
    def chats(self) -> ChatRenderer:
        """The renderer; a ConfigError for the first chat if the tokenizer has no template."""
        return self.renderer or ChatRenderer(self.tokenizer)

    @cached_property
    def template_ends_turns(self) -> bool:
        """Whether the template writes an end-of-turn token after a last answer, or refuses the chat that would show it."""
        refused = self.chats.sample is None
        return refused or template_turn_end(self.tokenizer, self.chats) is not None

    def new_counts(self) -> StepCounts:
        """Empty counts of the origins of the steps in the data set."""
        return (
            StepCounts(self.options.rules.name)
            if self.options.needs_steps and not self.streams
            else StepCounts()
        )

    def __call__(self, rows: Sequence[PlacedRow]) -> Encoded:
        """Encode a chunk of rows. With `strict_data`, DataError for an unusable row."""
        report = DataReport(self.name, steps=self.new_counts())
        # First, read every row: a text, a chat, or the error that skips the row.
        items = list[StreamRow | CheckedChat | RowError]()
        for _, row in rows:
            if self.streams and is_stream(row):
                items.append(attempted(stream_row, row, self.tokenizer))
            else:
                needs_steps = self.options.needs_steps
                items.append(attempted(CheckedChat.of, row, self.options, needs_steps, self.chats))
        # One call for all texts of a chunk is faster than one for each row.
        texts = [self._text_of(item) for item in items if isinstance(item, CheckedChat)]
        tokens = iter(encode_texts(self.tokenizer, texts))
        counts: list[int] = []
        examples: list[Example] = []
        for (place, _), item in zip(rows, items, strict=True):
            encoded: list[Example] | RowError
            if isinstance(item, CheckedChat):
                encoded = attempted(self._chat, place, item, next(tokens), report)
            else:
                encoded = (
                    item if isinstance(item, RowError) else attempted(self._text, item, report)
                )
            if isinstance(encoded, RowError):
                # Rows that the user asked to leave out are not a fault of the data.
                report.skip(encoded, place, self.options.strict_data and encoded.reason != LONGER)
                encoded = []
            counts.append(len(encoded))
            examples += encoded
        report.rows_read, report.examples = len(rows), len(examples)
        report.rows_kept = report.rows_read - report.rows_skipped.total()
        # A fixed number of bytes per row, so the digest of the data set does not depend on the chunks.
        digests = b"".join(
            hashlib.sha256(repr(row).encode("utf-8", "replace")).digest() for _, row in rows
        )
        return Encoded(counts, ExampleStore.of(examples), report, digests)

    def _text_of(self, chat: CheckedChat) -> str:
        """The part of a chat that is tokenised: the complete chat, or the chat up to its last answer if an EOS is
        appended."""
        # The template's text after the answer is cut off; otherwise, the tokenizer might merge it with the answer's last
        # character, such as a full stop with a line break.
        rendered = chat.shown
        return (
            rendered.text[: rendered.spans[-1].stop]
            if self._appends_eos(rendered)
            else rendered.text
        )

    def tokenised(self, chat: CheckedChat) -> TokenisedText:
        """Return the tokens of a rendered chat, before the cut at `max_length`, and their last characters."""
        (tokens,) = encode_texts(self.tokenizer, [self._text_of(chat)])
        return self._apart(chat, tokens)

    def _apart(self, chat: CheckedChat, tokens: TokenisedText) -> TokenisedText:
        """The tokens of a chat, encoded again where a token spans the end of a prompt or, if an EOS follows it, of an
        answer."""
        # A prompt ends where the model begins to write, so a token must end there in training, too.
        places = list(chat.shown.begins)
        if not self.template_ends_turns:
            # If no end-of-turn token follows, the answer's last token must not reach into the template's text.
            places += [span.stop for span in chat.shown.turns if span.start < span.stop]
        return encode_apart(self.tokenizer, self._text_of(chat), tokens, places)

    def _text(self, row: StreamRow, report: DataReport) -> list[Example]:
        """Make the examples of a row of plain text; RowError if nothing remains to train on.

        A text is split into blocks of at most `max_length` tokens, all of them labelled. A row with its own labels is cut
        like a chat.
        """
        objective = self.options.objective
        ids = row.ids
        limit = min(self.options.max_length, self.options.max_positions or self.options.max_length)
        report.unread.update(row.unread)
        labelled: list[tuple[np.ndarray, tuple[Span, ...]]]
        if row.labels is None:
            # Nothing predicts the first token of a block, so a last block of one token is left out.
            blocks = [ids[start : start + limit] for start in range(0, len(ids), limit)]
            labelled = [(block, (Span(1, len(block)),)) for block in blocks if len(block) > 1]
        else:
            self._refuse_longer(ids)
            labels = cut_spans(row.labels, limit)
            labelled = [(ids[:limit], labels)] if labels else []
            report.answers_truncated += bool(labels) and row.labels[-1].stop > limit
        if not labelled:
            raise RowError(
                "nothing_to_learn",
                "there is nothing to learn: the row has fewer than two tokens, or none is labelled",
            )
        examples = []
        for block, spans in labelled:
            pairs = PairsFound() if objective is None else objective.pairs_of_text(block)
            examples.append(self._paired(Example(block, spans, pairs.segments), pairs, report))
        return examples

    def _chat(
        self, place: str, chat: CheckedChat, tokens: TokenisedText, report: DataReport
    ) -> list[Example]:
        """Make the example of a chat and count it in the report; RowError if none of its tokens can be trained on."""
        if isinstance(chat.steps, RowError):
            raise chat.steps
        ids, last = self._apart(chat, tokens)
        limit = self.options.max_length
        objective = self.options.objective
        turns, ids, end_id = self._turns(chat, ids, last, report)
        self._refuse_longer(ids)

        # Labels: the trained answers with their ends of turn. Messages that are not trained on are context, never labelled.
        ended_by = self.end_ids if end_id is None else self.end_ids | {end_id}
        trained, viewed = list[Turn](), list[Turn]()
        answers, context = list[Span](), list[Span]()
        are_trained = trained_turns(chat.messages)
        for span, begin, turn, is_on in zip(
            chat.shown.turns, chat.shown.begins, turns, are_trained, strict=True
        ):
            written = Span(bisect_left(last, begin), turn.label_stop)
            if not is_on:
                context.append(written)
                continue
            trained.append(turn)
            # An answer that begins beyond the limit, or is empty, has nothing to label.
            if turn.answer.start < min(limit, turn.label_stop):
                answers.append(written)
            # Only trained answers have views; a turn that calls tools is not an answer.
            if span.close is None:
                viewed.append(turn)
        for span in chat.shown.spans:
            message = chat.messages[span.number + chat.shown.folded_system]
            if span.role == TOOL or not is_trained(message):
                context.append(token_span(last, span.start, span.end))
        labels = label_spans(
            self.options.labels or "assistant", ids, answers, ended_by, limit, context
        )
        if not labels:
            first = trained[0].answer.start
            if first < limit:
                raise RowError(
                    "nothing_to_learn",
                    "the answer is empty, and no token ends its turn; write an answer",
                )
            raise RowError(
                "no_room_for_answer",
                f"the prompt has {first} tokens and {_NAME.max_length} is {limit}; raise --{_NAME.max_length}",
            )
        if trained[-1].label_stop > limit:
            if self.options.strict_data:
                what = f"the chat has {len(ids)} tokens, and the answer would be cut; raise --{_NAME.max_length}"
                raise RowError("answer_truncated", what)
            report.answers_truncated += 1

        # Pairs: a row whose target column is empty still trains the language model.
        trunk = ids[:limit]
        pairs = PairsFound()
        if isinstance(chat.target, RowError):
            pairs = PairsFound(reason=chat.target.reason)
            report.first_without_target = report.first_without_target or f"{place}: {chat.target}"
        elif objective is not None:
            # A target column has one text per row, which belongs to the last answer.
            viewed = viewed if chat.target is None else viewed[-1:]
            pairs = objective.pairs_of(
                TokenChat(
                    ids,
                    trunk,
                    viewed,
                    chat.messages,
                    self.tokenizer,
                    self.chats,
                    chat.target,
                    labels,
                )
            )
            if not viewed and pairs.reason:
                pairs = pairs._replace(reason="no_answer_in_text")

        # The data report counts steps, prompts, and the parts of the row that are not read.
        if chat.steps is not None:
            report.steps.count(place, chat.steps)
        report.prompts.count(place, chat.messages, chat.shown, self.chats.switches)
        report.system_folded += chat.shown.folded_system
        opening = chat.messages[0]
        if opening["role"] == "system":
            report.system_prompts[opening["content"]] += 1
        else:
            report.without_system_prompt += 1
        report.unread.update(chat.unread)
        renderer = self.chats.using(chat.template_kwargs)
        unread = (name for name in chat.template_kwargs if name not in renderer.template)
        report.unread.update(f"argument {name!r} of the chat template" for name in unread)
        return [self._paired(Example(trunk, labels, pairs.segments), pairs, report)]

    def _paired(self, example: Example, candidates: PairsFound, report: DataReport) -> Example:
        """Add the pairs that fit into `max_length` and the model's positions to an example that has its segments; the report
        counts the other pairs."""
        options = self.options
        reason = candidates.reason
        pairs, span_pairs = list(candidates.pairs), list(candidates.view_spans)
        # An id without an embedding would fail on the GPU, with an error that names neither the row nor the token.
        largest = int(example.trunk.max())
        if options.vocabulary is not None and largest >= options.vocabulary:
            token = self.tokenizer.convert_ids_to_tokens(largest)
            raise RowError(
                "no_embedding",
                f"token {token} has id {largest}, but the model has only {options.vocabulary} embeddings",
            )
        limits = (
            ("pair_truncated", options.max_length, False),
            ("beyond_positions", options.max_positions, True),
        )
        for why, limit, positions in limits:
            if limit is None:
                continue
            before = len(pairs) + len(span_pairs)
            pairs = [pair for pair in pairs if example.reach(pair, positions) <= limit]
            span_pairs = [
                spans for spans in span_pairs if max(span.stop for span in spans) <= limit
            ]
            dropped = before - len(pairs) - len(span_pairs)
            if dropped:
                report.pairs_dropped[why] += dropped
                reason = why
        if options.objective is not None:
            if options.objective.one_pair and len(pairs) > 1:
                report.pairs_dropped["second_pair"] += len(pairs) - 1
                pairs = pairs[:1]
            report.pairs += len(pairs) + sum(
                [options.objective.pairs_between(*spans) for spans in span_pairs]
            )
            if not pairs and not span_pairs:
                report.examples_without_pairs[reason or "empty_view"] += 1
        report.labelled_tokens += sum([stop - start for start, stop in example.labels])
        return example.with_pairs(pairs)._replace(view_spans=tuple(span_pairs))

    def _refuse_longer(self, ids: np.ndarray) -> None:
        """Raise a RowError for a row of more than `max_length` tokens, if `drop_longer` leaves out such rows."""
        limit = self.options.max_length
        if self.options.drop_longer and len(ids) > limit:
            raise RowError(
                LONGER, f"the row has {len(ids):,} tokens, and {_NAME.max_length} is {limit:,}"
            )

    def _appends_eos(self, chat: RenderedChat) -> bool:
        return (
            chat.spans[-1].role == "assistant"
            and self.eos is not None
            and not self.template_ends_turns
        )

    def _turns(
        self, row: CheckedChat, ids: np.ndarray, last: list[int], report: DataReport
    ) -> tuple[list[Turn], np.ndarray, int | None]:
        """The assistant turns in tokens; the ids, with an EOS appended if the template writes no end of turn; and the token
        that ends a turn. The report names this token."""
        chat, turns, eos, objective = row.shown, list[Turn](), self.eos, self.options.objective
        steps_of_answers = row.step_spans
        # The last user message before a turn, and the token after the end of the user's turn.
        user: tuple[Span | None, int] = (None, 0)
        answers = 0
        end_id = None
        # For each message, the first token of the next one; the end of turn is searched for in between.
        following = [*[bisect_left(last, span.start) for span in chat.spans[1:]], len(last)]
        for span, begins in zip(chat.spans, following, strict=True):
            content = token_span(last, span.start, span.end)
            written = content.stop
            closing = range(written, begins)
            # A turn with tool calls ends with the last token of the calls.
            if span.close is not None:
                written = bisect_left(last, span.close)
                closing = range(written - 1, written)
            mark = next((place for place in closing if int(ids[place]) in self.marks), None)
            if mark is not None and span.role == "assistant" and not self.template_ends_turns:
                # The marker opens the next turn and does not end this one, unless it is the EOS itself.
                mark = mark if ids[mark] == eos else None
            close = written if mark is None else mark + 1
            if span.role == "user":
                user = (content, close)
            if span.role != "assistant":
                continue
            if mark is not None:
                end_id = int(ids[mark])
            elif eos is not None and span is chat.spans[-1] and self._appends_eos(chat):
                ids = np.append(ids, np.int32(eos))
                close = len(ids)
                end_id = eos
            step_spans: list[CharSpan] = []
            cue_span: CharSpan | None = None
            # Steps and cue are in characters of the answer; a turn that calls tools is not an answer and has neither.
            if span.close is None:
                step_spans = [] if steps_of_answers is None else steps_of_answers[answers]
                answers += 1
                cue_span = (
                    None
                    if objective is None
                    else objective.cue_of(chat.text[span.start : span.end])
                )
            steps = tuple(
                [
                    token_span(last, span.start + start, span.start + end)
                    for start, end in step_spans
                ]
            )
            cue = cue_span and token_span(last, span.start + cue_span[0], span.start + cue_span[1])
            turns.append(Turn(*user, content, close, steps, cue))
        # The report names the first end of turn of the data set.
        if end_id is not None and report.end_token is None:
            report.end_token = str(self.tokenizer.convert_ids_to_tokens(end_id))
        return turns, ids, end_id


def encode_dataset(
    source: object,
    tokenizer: PreTrainedTokenizerBase,
    renderer: ChatRenderer | None,
    options: EncodeOptions,
    processes: int = 1,
) -> tuple[ExampleStore, DataReport]:
    """Encode a whole data set: read, render, tokenise and pair its rows.

    Args:
        source: any source that `RowSource` takes.
        processes: the number of processes that encode; it does not change the examples.

    Raises:
        DataError: no rows, no example to train on, or with ``strict_data`` the first unusable row.
        ConfigError: a slow tokenizer, or chats without a template.
    """
    rows = RowSource.of(source)
    encoder = make_encoder(rows, tokenizer, renderer, options)
    report, stores, digests = DataReport(rows.name), [], list[bytes]()
    placed = ((rows.place(number), row) for number, row in rows)
    chunks = iter(lambda: list(islice(placed, CHUNK_ROWS)), [])
    for encoded in mapped(encoder, chunks, processes, _NAME.dataset_num_proc):
        report.add(encoded.report)
        stores.append(encoded.store)
        digests.append(encoded.digest)
    # The digest of the rows in their order, which a resumed run compares with its own.
    report.fingerprint = digest(digests)
    report.require(report.examples)
    store = ExampleStore.joined(stores)
    report.set_lengths(store.lengths)
    return store, report


def make_encoder(
    rows: RowSource,
    tokenizer: PreTrainedTokenizerBase,
    renderer: ChatRenderer | None,
    options: EncodeOptions,
) -> RowEncoder:
    """Make the encoder of a data set, whose first row decides between chats and plain text.

    Raises:
        DataError: no rows, or plain text for an objective that needs chats.
        ConfigError: a tokenizer that cannot be used.
    """
    number, row = next(iter(rows), (None, {}))
    if number is None:
        raise no_rows(rows.name)
    streams = options.columns is None and is_stream(row)
    if (
        streams
        and options.objective
        and (options.objective.target_column or not options.objective.takes_text)
    ):
        raise DataError(
            f"{rows.place(number)}: columns found: {listed_columns(row)}; {options.objective.name} needs chats "
            f"({KNOWN_CHATS}); stepjepa check names the objectives for plain text"
        )
    return RowEncoder(rows.name, tokenizer, renderer, options, streams)
