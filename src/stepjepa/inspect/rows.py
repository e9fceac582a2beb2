"""The examples that are shown: rows of a data set under the options of a run, as training samples them in epoch 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from stepjepa.config.option import Names, options_of
from stepjepa.config.parser import build
from stepjepa.data.encode import CheckedChat, RowEncoder, encode_dataset, make_encoder, read_chat
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowSource, is_stream, texts_of
from stepjepa.data.tokens import TokenisedText, byte_letters, encode_apart, encode_texts, token_span
from stepjepa.data.types import Example
from stepjepa.errors import ConfigError, DataError, no_rows
from stepjepa.inspect.layout import NamedSpan, RowForm, packing_line, row_records
from stepjepa.inspect.record import RowRecord
from stepjepa.objectives.base import objective_of
from stepjepa.training.datasets import chat_tokenizer, make_renderer, settings_for
from stepjepa.training.options import JEPAOptions, summary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NAME = Names(JEPAOptions)


def method_from(options: Mapping[str, Any]) -> JEPAOptions:
    """The method's options by name, checked; raises ConfigError."""
    (method,) = build((JEPAOptions,), options)
    method.check()
    return method


def taken(kind: type, options: dict[str, Any], *others: str) -> dict[str, Any]:
    """The options of a dataclass by name, but for `others`, taken out of `options`."""
    return {name: options.pop(name) for name in options_of(kind) if name in options and name not in others}


def tokenizer_of(source: object, name: str, method: JEPAOptions) -> PreTrainedTokenizerBase:
    """The tokenizer of a run; a preset's is trained on the file, whose columns `method` may name."""
    from stepjepa.modeling.load import load_tokenizer

    return load_tokenizer(name, texts_of([source], method.columns))


def encoder_for(rows: RowSource, tokenizer: PreTrainedTokenizerBase, method: JEPAOptions) -> RowEncoder:
    """Training's encoder of a data set; raises ConfigError for a tokenizer with ids beyond the model's embedding."""
    from stepjepa.modeling.load import check_vocabulary, configured_rows

    tokenizer = chat_tokenizer(tokenizer, method)
    name = str(tokenizer.name_or_path)
    vocabulary = configured_rows(name) if name else None
    if vocabulary is not None:
        check_vocabulary(tokenizer, vocabulary, name)
    settings = settings_for(rows, method, vocabulary=vocabulary)
    return make_encoder(rows, tokenizer, make_renderer(tokenizer, method), settings)


def rows_from(source: object, number: int) -> Iterator[tuple[int, str, Any]]:
    """Row `number` of a data set, counted from 0, and those after it: number, place as users know it, and the row.

    Raises:
        ConfigError: no such row.
        DataError: the source cannot be read.
    """
    rows, count = RowSource(source), 0
    for count, (label, row) in enumerate(rows, 1):
        if count > number:
            yield count - 1, rows.place(label), row
    if not count:
        raise no_rows(rows.name)
    if count <= number:
        raise ConfigError(
            f"row {number}: {rows.name} has {count:,} rows, counted from 0, so the last one is row {count - 1}"
        )


@dataclass(frozen=True)
class ShownRows:
    """The examples that are shown under the options of one run.

    Attributes:
        source, number, count: where they are from: `count` of them from row `number` on.
        tokenizer, method, seed: of the run; the options are checked.
        form: how they are laid out.
        examples: at least one, as training samples them.
        spans: names for the trunk of each.
        notes: what there is to say about them, each once.
    """

    source: object
    number: int
    tokenizer: PreTrainedTokenizerBase
    method: JEPAOptions
    seed: int
    count: int
    form: RowForm
    examples: list[Example] = field(default_factory=list)
    spans: list[tuple[NamedSpan, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @cached_property
    def records(self) -> list[RowRecord]:
        """The rows that the examples are packed into; loads torch."""
        return row_records(self.examples, self.form, token_text(self.tokenizer), self.spans)

    def packing(self) -> str:
        """How many positions they take; loads torch."""
        return packing_line(self.examples, self.records, self.form.forward)

    def in_form(self, forward: str) -> ShownRows:
        """The same examples under another ``forward``; raises as `show_rows`, and ConfigError where options forbid it."""
        objective = objective_of(self.method)
        if not objective.makes_pairs:
            raise ConfigError(f"objective {self.method.objective} makes no pair: every forward is the chat alone")
        method = replace(self.method, forward=forward)  # type: ignore[arg-type]
        method.check()
        return show_rows(self.source, self.number, self.tokenizer, method, self.seed, self.count)


def show_rows(
    source: object, number: int, tokenizer: PreTrainedTokenizerBase, method: JEPAOptions, seed: int, count: int = 1
) -> ShownRows:
    """The first `count` examples from row `number` on, as training samples them in epoch 0.

    Rows that training skips are passed over; if the first one is skipped, that is an error.

    Args:
        method: checked.

    Raises:
        ConfigError: no such row, or a template that cannot be used.
        DataError: training would skip the first row, or stop at one.
    """
    from stepjepa.training.sampling import ExampleDraw

    encoder, objective = encoder_for(RowSource(source), tokenizer, method), objective_of(method)
    sample = ExampleDraw(objective, seed, method.jepa_ratio)
    shown = ShownRows(source, number, encoder.tokenizer, method, seed, count, RowForm.of(method, encoder.tokenizer))
    kept: set[int] = set()
    about: dict[str, set[int]] = {}  # note -> rows
    index = 0  # of an example among all examples: what is sampled depends on it
    if number and objective.makes_pairs and (objective.sampled or method.jepa_ratio < 1):
        before = [row for _, row in islice(RowSource(source), number)]
        try:
            index = len(encode_dataset(before, encoder.tokenizer, encoder.renderer, encoder.options)[0])
        except DataError:
            index = 0  # training keeps none of them
    for at, place, row in rows_from(source, number):
        if len(shown.examples) == count:
            break
        encoded = encoder([(place, row)])
        skipped = next(iter(encoded.report.first_skipped.values()), None)
        if skipped is not None:
            if at == number:
                raise DataError(f"{skipped}; training skips this row")
            shown.notes.append(f"row {at} is passed over: {skipped}; training skips this row")
        for own, example in enumerate(islice(encoded.store, count - len(shown.examples)), index):
            sampled = sample(example, 0, own)
            shown.examples.append(sampled)
            shown.spans.append(row_spans(row, sampled, encoder))
            kept.add(at)
            for note in _notes(shown, example, sampled, own, encoded.report):
                about.setdefault(note, set()).add(at)
        index += len(encoded.store)
    if len(shown.examples) < count:
        shown.notes.append(f"{len(shown.examples)} examples are shown: there are no more after row {number}")
    for note, numbers in about.items():
        which = f"row{'s' * (len(numbers) > 1)} {', '.join(map(str, sorted(numbers)))}: "
        shown.notes.append(note if numbers == kept else which + note)
    return shown


def _notes(shown: ShownRows, example: Example, sampled: Example, index: int, report: DataReport) -> Iterator[str]:
    """What training does with an example and its picture does not show; `sampled` is the example as training samples it."""
    from stepjepa.training.sampling import keeps_pairs

    method, objective, pairs = shown.method, objective_of(shown.method), example.view_pairs
    epoch = f"epoch 0 with seed {shown.seed}"
    yield from map(str.strip, report.lines()[1:])  # also why there is no pair
    if "fewer_than_two_steps" in report.examples_without_pairs:
        yield f"(stepjepa check {shown.source} says which step splitter finds steps)"
    if not objective.makes_pairs:
        yield f"no pair: the objective {method.objective} makes none"
    elif pairs and not keeps_pairs(shown.seed, 0, index, method.jepa_ratio):
        yield f"no pair in {epoch}: {_NAME.jepa_ratio} {method.jepa_ratio:g} leaves this row out"
    elif pairs and not sampled.pairs:
        yield f"no pair: the contents are too short for {summary(method)}; it trains as plain language modelling"
    elif pairs and objective.sampled and shown.form.vector_names.ends:
        yield f"spans are sampled for {epoch}; the row has the chat's tokens alone"
    elif example.pairs and len(sampled.pairs) < pairs:
        yield f"{'one' if len(sampled.pairs) == 1 else len(sampled.pairs)} of {pairs} pairs, sampled for {epoch}"
    if shown.form.forward == "two_pass":
        yield "forward two_pass: every segment is a row of its own; the LM loss is on the chat's"
    if objective.separate_targets and sampled.pairs:
        encoder = " by the EMA encoder" if method.target_encoder == "ema" else ""
        yield f"targets get no gradient: they are encoded{encoder} in a pass of their own, not in this row"


def row_spans(row: object, example: Example, encoder: RowEncoder) -> tuple[NamedSpan, ...]:
    """Names for the trunk of a row's example."""
    if encoder.streams and is_stream(row):
        return (NamedSpan("text", 0, len(example.trunk)),)
    return trunk_spans(encoder.tokenizer, read_chat(row, encoder.chats, encoder.options), example.trunk)


def trunk_spans(
    tokenizer: PreTrainedTokenizerBase, chat: CheckedChat, trunk: np.ndarray | None = None
) -> tuple[NamedSpan, ...]:
    """Where a chat's messages, and the answers' steps, are among its tokens; the template's own tokens have no span.

    Names are the roles, and "step 1" .. for an answer's steps ("answer 2, step 1" where there are several answers).
    Empty stretches are left out.

    Args:
        chat: rendered, with its steps; without steps the answers are named.
        trunk: (T,) the tokens that were made of the chat. There are no spans if no way to tokenise the chat leads to them.
    """
    ways = _tokenised(tokenizer, chat)
    last = next((last for ids, last in ways if trunk is None or _agrees(ids, trunk)), None)
    if last is None:
        return ()
    several, answers = len(chat.answer_spans) > 1, 0
    found: list[NamedSpan] = []
    for span in chat.shown.spans:
        names, pieces = [span.role], [(0, span.end - span.start)]
        if span.role == "assistant":
            names = [f"answer {answers + 1}" if several else "answer"]
            if chat.step_spans is not None:
                pieces = list(chat.step_spans[answers])
                names = [f"{names[0]}, " * several + f"step {number + 1}" for number in range(len(pieces))]
            answers += 1
        for name, (start, end) in zip(names, pieces, strict=True):
            first, stop = token_span(last, span.start + start, span.start + end)
            if first < stop:
                found.append(NamedSpan(name, first, stop))
    return tuple(found)


def _tokenised(tokenizer: PreTrainedTokenizerBase, chat: CheckedChat) -> Iterator[TokenisedText]:
    """Token ids and last characters in every way in which `data.encode` may tokenise a chat.

    Where the template ends no turn, what it writes after the last answer is left out, and no token reaches over the end
    of an answer.
    """
    whole, begins = chat.shown.text, chat.shown.begins
    for text in (whole, whole[: chat.shown.spans[-1].end]):
        tokens = encode_texts(tokenizer, [text])[0]
        yield encode_apart(tokenizer, text, tokens, begins)
        yield encode_apart(tokenizer, text, tokens, [*begins, *(span.end for span in chat.answer_spans)])


def _agrees(ids: np.ndarray, trunk: np.ndarray) -> bool:
    """Whether `trunk` is `ids`, cut on the right or with one more token (an EOS)."""
    return len(trunk) <= len(ids) + 1 and np.array_equal(ids[: len(trunk)], trunk[: len(ids)])


def token_text(tokenizer: PreTrainedTokenizerBase) -> Callable[[int], str]:
    r"""A function from a token id to its text; bytes that are no complete character are written ``\xf0``."""
    letters = byte_letters()  # of byte-level tokenizers

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
