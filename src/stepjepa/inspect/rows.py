"""The examples that are shown: rows of a data set under the options of a run, as training samples them in epoch 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepjepa.data.chat import ChatRenderer, RenderedChat
from stepjepa.data.encode import ReadChat, RowEncoder, encode_dataset, make_encoder, read_chat
from stepjepa.data.report import REASONS, DataReport
from stepjepa.data.sources import RowSource, is_stream
from stepjepa.data.tokens import encode_cut, encode_texts, token_span
from stepjepa.data.types import Example
from stepjepa.errors import ConfigError, DataError
from stepjepa.inspect.record import SAMPLED_TUBES, Form, RowRecord, Span
from stepjepa.training.options import JEPAOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Traits(NamedTuple):
    """What this package asks of an objective under its options.

    Attributes:
        views: it makes pairs of views, which predictors may read.
        vectors: it combines states of the chat itself.
        sampled: something of an example is sampled every epoch.
        halves: source and target together are the text.
    """

    views: bool
    vectors: bool
    sampled: bool
    halves: bool


def traits(method: JEPAOptions) -> Traits:
    """The one place of this package that knows objectives by name."""
    name, pairs = method.objective, method.uses_pairs
    vectors = pairs and name == "semantic_tube"
    one_pair = name == "step_jepa" and method.step_pairs == "random"
    sampled = pairs and (one_pair or method.jepa_ratio < 1 or (vectors and method.tube_mode in SAMPLED_TUBES))
    return Traits(pairs and not vectors, vectors, sampled, name == "split")


def form_of(method: JEPAOptions) -> Form:
    """How the views of a run are read and computed."""
    own = method.forward in ("inline", "two_pass") and method.uses_pairs
    return Form(
        (method.predictors or 0) if traits(method).views else 0,
        method.predictor_order == "descending",
        method.same_predictor,
        method.forward if own else "packed",
    )


def tokenizer_of(source: Any, name: str, method: JEPAOptions) -> PreTrainedTokenizerBase:
    """The tokenizer of a run; a preset's is trained on the file, whose columns `method` may name."""
    from stepjepa.data.sources import texts_of
    from stepjepa.modeling.load import load_tokenizer
    from stepjepa.training.encoding import pair_columns

    return load_tokenizer(name, texts_of([source], pair_columns(method)))


class FoundRow(NamedTuple):
    """A row of a data set: its number from 0, its place as users know it, and the row."""

    number: int
    place: str
    row: Any


def rows_from(source: Any, number: int) -> Iterator[FoundRow]:
    """Row `number`, counted from 0, and those after it.

    Raises:
        ConfigError: no such row.
        DataError: the source cannot be read.
    """
    if number < 0:
        raise ConfigError(f"--row {number}: rows are counted from 0")
    rows, count = RowSource(source), 0
    for label, row in rows:
        if count >= number:
            yield FoundRow(count, rows.place(label), row)
        count += 1
    if not count:
        raise DataError(f"{rows.name}: the file or data set is empty; it needs at least one row")
    if count <= number:
        raise ConfigError(
            f"row {number}: {rows.name} has {count:,} rows, counted from 0, so the last one is row {count - 1}"
        )


@dataclass(frozen=True)
class ShownRows:
    """The examples that are shown under the options of one run.

    Attributes:
        tokenizer, method: of the run; the options are checked.
        examples: at least one, as training samples them.
        spans: names for the trunk of each.
        notes: what there is to say about them, each once.
    """

    tokenizer: PreTrainedTokenizerBase
    method: JEPAOptions
    examples: list[Example]
    spans: list[tuple[Span, ...]]
    notes: list[str]

    def records(self) -> list[RowRecord]:
        """The rows that the examples are packed into; loads torch."""
        from stepjepa.inspect.layout import row_records

        return row_records(
            self.examples,
            form_of(self.method),
            token_text(self.tokenizer),
            vocabulary=len(self.tokenizer),
            pad_token_id=self.tokenizer.pad_token_id or 0,
            max_row_length=self.method.max_row_length,
            tube_mode=self.method.tube_mode,
            spans=self.spans,
        )

    def packing(self) -> str:
        """How many positions they take; loads torch."""
        from stepjepa.inspect.padding import packing_line

        return packing_line(
            self.examples,
            form_of(self.method),
            vocabulary=len(self.tokenizer),
            separate_targets=self.method.separate_targets,
            max_row_length=self.method.max_row_length,
        )


def show_rows(
    source: Any, number: int, tokenizer: PreTrainedTokenizerBase, method: JEPAOptions, seed: int, count: int = 1
) -> ShownRows:
    """The first `count` examples from row `number` on, as training samples them in epoch 0.

    Rows that training skips are passed over; if the first one is skipped, that is an error.

    Args:
        method: checked.

    Raises:
        ConfigError: no such row, or a template that cannot be used.
        DataError: training would skip the first row, or stop at one.
    """
    from stepjepa.objectives.base import objective_of
    from stepjepa.training.draws import ExampleDraw
    from stepjepa.training.encoding import chat_tokenizer, make_renderer, settings_for

    tokenizer = chat_tokenizer(tokenizer, method)
    renderer, rows = make_renderer(tokenizer, method), RowSource(source)
    settings = settings_for(rows, method)
    encoder = make_encoder(rows, tokenizer, renderer, settings)
    sample = ExampleDraw(objective_of(method), seed, method.jepa_ratio)
    examples: list[Example] = []
    spans: list[tuple[Span, ...]] = []
    general: list[str] = []
    shown: set[int] = set()
    about: dict[str, set[int]] = {}  # note -> rows
    index = 0  # of an example among all examples: what is sampled depends on it
    if traits(method).sampled and number:
        before = [row for _, row in islice(RowSource(source), number)]
        index = _kept(before, tokenizer, renderer, settings)
    for found in rows_from(source, number):
        if len(examples) == count:
            break
        encoded = encoder([(found.place, found.row)])
        skipped = next(iter(encoded.report.first_skipped.values()), None)
        if skipped is not None:
            error = DataError(f"{skipped}; training skips this row")
            if found.number == number:
                raise error
            general.append(f"row {found.number} is passed over: {error}")
        for part, example in enumerate(islice(encoded.store, count - len(examples))):
            sampled = sample(example, 0, index + part)
            examples.append(sampled)
            spans.append(row_spans(found.row, sampled, encoder))
            shown.add(found.number)
            for note in _notes(source, method, seed, (example, sampled), index + part, encoded.report):
                about.setdefault(note, set()).add(found.number)
        index += len(encoded.store)
    if len(examples) < count:
        general.append(f"{len(examples)} examples are shown: there are no more after row {number}")
    for note, numbers in about.items():
        which = f"row{'s' * (len(numbers) > 1)} {', '.join(map(str, sorted(numbers)))}: "
        general.append(note if numbers == shown else which + note)
    return ShownRows(tokenizer, method, examples, spans, general)


def _kept(rows: list[Any], tokenizer: Any, renderer: ChatRenderer | None, settings: Any) -> int:
    """The examples that rows become; 0 where training keeps none of them."""
    try:
        return len(encode_dataset(rows, tokenizer, renderer, settings)[0])
    except DataError:
        return 0


def _notes(
    source: Any,
    method: JEPAOptions,
    seed: int,
    before_and_after: tuple[Example, Example],
    index: int,
    report: DataReport,
) -> Iterator[str]:
    """What training does with an example and its picture does not show.

    Args:
        before_and_after: the example as it was encoded, and as training samples it.
        index: of the example among all examples.
        report: on its row.
    """
    from stepjepa.training.draws import keeps_pairs

    example, sampled = before_and_after
    asked, pairs = traits(method), example.view_pairs
    epoch = f"epoch 0 with seed {seed}"
    yield from report.steps.lines()
    if not pairs and not (asked.views or asked.vectors):
        yield f"no pair: the objective {method.objective} makes none"
    elif not pairs:
        for why in report.examples_without_pairs:
            yield f"no pair: {REASONS.get(why, why)}; it trains as plain language modelling"
        if "fewer_than_two_steps" in report.examples_without_pairs:
            yield f"(stepjepa check {source} says which step splitter finds steps)"
    elif not keeps_pairs(seed, 0, index, method.jepa_ratio):
        yield f"no pair in {epoch}: jepa_ratio {method.jepa_ratio:g} leaves this row out"
    elif asked.vectors and not sampled.pairs:
        yield "no pair: the contents are too short for this tube_mode; it trains as plain language modelling"
    elif asked.vectors and method.tube_mode in SAMPLED_TUBES:
        yield f"spans are sampled for {epoch}; the row has the chat's tokens alone"
    elif asked.views and len(sampled.pairs) < pairs:
        yield f"one of {pairs} pairs, sampled for {epoch}"
    if pairs:
        for why, count in report.pairs_dropped.items():
            yield f"pairs left out: {count} ({REASONS.get(why, why)})"
    if report.examples > 1:
        yield f"the text is cut into {report.examples} examples of up to {method.max_length} tokens; the first is shown"
    if report.answers_truncated:
        yield f"the answer is cut at max_length {method.max_length}"
    if report.system_folded:
        yield "the template has no system role: the system message is part of the user's message"
    if form_of(method).forward == "two_pass":
        yield "forward two_pass: every segment is a row of its own; the LM loss is on the chat's"
    if method.separate_targets and sampled.pairs:
        encoder = " by the EMA encoder" if method.target_encoder == "ema" else ""
        yield f"targets get no gradient: they are encoded{encoder} in a pass of their own, not in this row"


def row_spans(row: Any, example: Example, encoder: RowEncoder) -> tuple[Span, ...]:
    """Names for the trunk of a row's example."""
    if encoder.streams and is_stream(row):
        return (Span("text", 0, len(example.input_ids)),)
    return trunk_spans(encoder.tokenizer, read_chat(row, encoder.chats, encoder.options), example.input_ids)


def trunk_spans(
    tokenizer: PreTrainedTokenizerBase, chat: ReadChat, trunk: np.ndarray | None = None
) -> tuple[Span, ...]:
    """Where a chat's messages, and the answers' steps, are among its tokens; the template's own tokens have no span.

    Names are the roles, and "step 1" .. for an answer's steps ("answer 2, step 1" where there are several answers).
    Empty stretches are left out.

    Args:
        chat: rendered, with its steps; without steps the answers are named.
        trunk: (T,) the tokens that were made of the chat. There are no spans if no way to tokenise the chat leads to them.
    """
    last = next(
        (last for ids, last in _tokenised(tokenizer, chat.rendered) if trunk is None or _agrees(ids, trunk)), None
    )
    if last is None:
        return ()
    several, answers = len(chat.answers) > 1, 0
    found: list[Span] = []
    for span in chat.rendered.spans:
        names, pieces = [span.role], [(0, span.end - span.start)]
        if span.role == "assistant":
            names = [f"answer {answers + 1}" if several else "answer"]
            if chat.steps is not None:
                pieces = list(chat.steps.spans[answers])
                names = [f"{names[0]}, " * several + f"step {number + 1}" for number in range(len(pieces))]
            answers += 1
        for name, (start, end) in zip(names, pieces, strict=True):
            first, stop = token_span(last, span.start + start, span.start + end)
            if first < stop:
                found.append(Span(name, first, stop))
    return tuple(found)


def _tokenised(tokenizer: Any, chat: RenderedChat) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Token ids and last characters in every way in which `data.encode` may tokenise a chat.

    Where the template ends no turn, what it writes after the last answer is left out, and no token reaches over the end
    of an answer.
    """
    for text in (chat.text, chat.text[: chat.spans[-1].end]):
        yield encode_texts(tokenizer, [text])[0]
        ends = [span.end for span in chat.spans if span.role == "assistant" and span.start < span.end < len(text)]
        yield encode_cut(tokenizer, text, ends)


def _agrees(ids: np.ndarray, trunk: np.ndarray) -> bool:
    """Whether `trunk` is `ids`, cut on the right or with one more token (an EOS)."""
    common = min(len(ids), len(trunk))
    return len(trunk) <= len(ids) + 1 and np.array_equal(ids[:common], trunk[:common])


def token_text(tokenizer: PreTrainedTokenizerBase) -> Callable[[int], str]:
    r"""A function from a token id to its text; bytes that are no complete character are written ``\xf0``."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]  # the letters of byte-level tokenizers (GPT-2)
    rest = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(rest)}

    def text(index: int) -> str:
        piece = tokenizer.convert_ids_to_tokens(index)
        if piece is None:
            return f"<id {index}>"
        decoded = str(tokenizer.decode([index], skip_special_tokens=False, clean_up_tokenization_spaces=False))
        if "\ufffd" in decoded and all(letter in letters for letter in piece):
            return "".join(f"\\x{letters[c]:02x}" if letters[c] > 126 else chr(letters[c]) for c in piece)
        if str(piece).startswith("\u2581") and not decoded.startswith(" "):
            return f" {decoded}"  # SentencePiece's decoder drops the first space of a text
        return str(piece) if decoded == "" or "\ufffd" in decoded else decoded

    return text
