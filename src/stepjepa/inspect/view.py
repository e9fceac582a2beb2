"""`inspect`: show a row of a data set as a model sees it in training, in the terminal, as a picture and as a page."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepjepa.config.option import Names, Values, check_fields, option, options_of
from stepjepa.config.parser import build
from stepjepa.data.columns import CALL, RESULT, TOOL, is_stream
from stepjepa.data.encode import CheckedChat, RowEncoder, encode_dataset, make_encoder
from stepjepa.data.sources import RowSource, texts_of
from stepjepa.data.tokens import token_span
from stepjepa.data.types import Example
from stepjepa.errors import ConfigError, DataError, library
from stepjepa.inspect.html import page_data, page_html, write_page
from stepjepa.inspect.layout import NamedSpan, RowForm, row_record, token_text
from stepjepa.inspect.record import RowRecord
from stepjepa.objectives.base import objective_of
from stepjepa.training.datasets import chat_tokenizer, make_renderer, settings_for
from stepjepa.training.options import ExampleOptions, JEPAOptions, method_line, without_effect
from stepjepa.utils.text import counted, printable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from typing_extensions import Unpack

    from stepjepa.keywords import InspectKeywords


@dataclass
class RowOptions:
    """Options of ``stepjepa inspect`` only: which row it shows, and where."""

    file: str | None = option(None, "The data file; usually written without --file.", "inspect")
    row: int = option(0, "The row to show, counted from 0.", "inspect", at_least=0)
    model_name: str = option(
        "mini",
        "Tokenizer: a Hub id, a local folder, or a preset (micro, tiny, mini: trained on the file).",
        "inspect",
    )
    seed: int = option(42, "Seed of what is sampled in every epoch; epoch 0 is shown.", "inspect")
    png: str | None = option(
        None,
        "Write a picture of who sees whom to this PNG file (needs stepjepa[analysis]).",
        "inspect",
    )
    html: str | None = option(
        None,
        "Write an HTML page to this file that shows, token by token, who sees whom; it needs no network.",
        "inspect",
    )
    overwrite: bool = option(
        False, "Replace existing files.", "inspect", aliases=("overwrite_output_dir",)
    )


@dataclass
class InspectOptions(ExampleOptions, RowOptions):
    """All options of ``stepjepa inspect``; the training options mean the same as in ``stepjepa train``."""


_NAME = Names(InspectOptions)
# Height of the page in a notebook, in pixels.
_PAGE_HEIGHT = 640
# Suffixes of the files to write: pages and a picture.
_SUFFIXES = (".html", ".htm", ".png")


@dataclass
class RowView:
    """What `inspect` returns: ``print`` it, or let a notebook display it.

    Attributes:
        title: the row and the method.
        record: the row.
        notes: remarks on the row and the options.
        written: a line for each file that was written.
    """

    title: str
    record: RowRecord
    notes: list[str]
    written: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        # A row that was written to a file is not drawn in the terminal as well.
        if self.written:
            return printable("\n".join([self.title, *self.notes, *self.written]))
        from rich.console import Console

        from stepjepa.inspect.terminal import draw

        console = Console()
        with console.capture() as drawn:
            draw(self.record, console, self.title, self.notes)
        return "\n".join(line.rstrip() for line in drawn.get().rstrip().split("\n"))

    def html(self) -> str:
        """The page: one file that needs no network."""
        return page_html(page_data(self.title, self.record, self.notes))

    def save(self, file: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the picture (``.png``) or the page (``.html``).

        Raises:
            ConfigError: the suffix is neither of these, or the file exists or cannot be written.
        """
        _check_output(file, overwrite)
        if Path(file).suffix.lower() != ".png":
            write_page(self.html(), file)
        else:
            from stepjepa.inspect.figure import row_figure, save_figure

            save_figure(row_figure(self.record, self.title), file)
        self.written.append(f"written: {file}")

    def _repr_html_(self) -> str:
        page, title = html.escape(self.html(), quote=True), html.escape(self.title)
        # A frame keeps the page's styles and scripts apart from the notebook's.
        return f'<iframe srcdoc="{page}" title="{title}" width="100%" height="{_PAGE_HEIGHT}"></iframe>'


def inspect(
    data: object,
    tokenizer: str | os.PathLike[str] | PreTrainedTokenizerBase = "mini",
    row: int = 0,
    **options: Unpack[InspectKeywords],
) -> RowView:
    """Show a row as the model sees it in the first epoch of training, with the options of a run.

    Args:
        data: a file, the name of a data set on the Hub, a `datasets.Dataset`, or a list of rows.
        tokenizer: a tokenizer, the Hub id or folder of one, or a preset, whose tokenizer is trained on `data`.
        row: the number of the row, counted from 0.
        options: the options of ``stepjepa inspect`` by name (`RowOptions`; with ``png`` or ``html``, printing the result
            lists the written files), and those of the method, as for `JEPAConfig` (``objective``, ``predictors``,
            ``labels``, ``forward``, ``max_length``, ...); options that do not change what the model sees have no effect.

    Raises:
        ConfigError: an option is unknown or has a value that cannot be used, there is no such row or tokenizer, or a file
            cannot be written.
        DataError: the data cannot be read, or training would skip the row.

    Examples:
        >>> view = inspect("train.jsonl", "tiny", objective="step_jepa", predictors=2)
        >>> print(view)
        >>> view.save("row.html")
    """
    of_method: dict[str, Any] = {**options}
    # The file and the tokenizer are arguments of this function.
    keywords = pop_options(RowOptions, of_method, _NAME.file, _NAME.model_name)
    row_options = RowOptions(row=row, **keywords)
    check_fields(row_options)
    method = method_from(of_method)
    files = [file for file in (row_options.html, row_options.png) if file is not None]
    # A file that cannot be written is refused now, before any work is done.
    for file in files:
        _check_output(file, row_options.overwrite)
    if row_options.png is not None:
        library("matplotlib", "analysis")

    rows = RowSource(data)
    # A missing row is noticed before a tokenizer is loaded or trained, which takes longer.
    place, _ = row_at(rows, row)
    loaded: Any = tokenizer
    if isinstance(tokenizer, (str, os.PathLike)):
        loaded = tokenizer_of(rows, str(tokenizer), method)
    encoder = encoder_for(rows, loaded, method)
    record, row_notes = shown_row(rows, row, encoder, method, row_options.seed)

    notes = without_effect(method, of_method)
    title = f"row {row} ({place}), {method_line(method)}"
    view = RowView(title, record, [*notes, *row_notes])
    for file in files:
        view.save(file, row_options.overwrite)
    return view


# The same function under a name that does not hide the standard library's `inspect`.
show_row = inspect


def _check_output(file: str | os.PathLike[str], overwrite: bool) -> None:
    """Refuse an output file (ConfigError) that has another suffix or already exists."""
    path = Path(file)
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"{file}: the file's name must end in {' or '.join(_SUFFIXES)}")
    if path.exists() and not overwrite:
        raise ConfigError(
            f"{file}: the file exists; choose another name, or give --{_NAME.overwrite} to replace it"
        )


# The shown example: that of a row, as training samples it in epoch 0. `check` shares some of these functions.


def method_from(options: Values) -> JEPAOptions:
    """Make the method's options from values by name, and check them; raises ConfigError."""
    (method,) = build((JEPAOptions,), options)
    method.check()
    return method


def pop_options(kind: type, options: dict[str, Any], *excluded: str) -> dict[str, Any]:
    """Remove the options of a dataclass, except `excluded`, from `options`, and return them by name."""
    return {
        name: options.pop(name)
        for name in options_of(kind)
        if name in options and name not in excluded
    }


def tokenizer_of(rows: RowSource, name: str, method: JEPAOptions) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a run; a preset's tokenizer is trained on the file, whose columns `method` may name."""
    from stepjepa.modeling.load import load_tokenizer

    return load_tokenizer(name, texts_of([rows], method.columns))


def encoder_for(
    rows: RowSource, tokenizer: PreTrainedTokenizerBase, method: JEPAOptions
) -> RowEncoder:
    """Make the encoder that training uses for a data set; ConfigError for token ids beyond the model's embedding."""
    from stepjepa.modeling.load import check_vocabulary, configured_rows

    tokenizer = chat_tokenizer(tokenizer, method)
    # The model itself is not loaded: its configuration says how many embeddings it has.
    name = str(tokenizer.name_or_path)
    vocabulary = configured_rows(name) if name else None
    if vocabulary is not None:
        check_vocabulary(tokenizer, vocabulary, name)
    settings = settings_for(rows, method, vocabulary=vocabulary)
    return make_encoder(rows, tokenizer, make_renderer(tokenizer, method), settings)


def row_at(rows: RowSource, number: int) -> tuple[str, Any]:
    """Read row `number` of a data set, counted from 0: its place in the source, and the row.

    Raises:
        ConfigError: no such row.
        DataError: the source cannot be read.
    """
    count = 0
    for count, (label, row) in enumerate(rows, 1):
        if count > number:
            return rows.place(label), row
    raise ConfigError(f"row {number}: {rows.name} has only {counted(count, 'row')}, counted from 0")


def shown_row(
    rows: RowSource, number: int, encoder: RowEncoder, method: JEPAOptions, seed: int
) -> tuple[RowRecord, list[str]]:
    """The record of the first example of row `number`, as training samples it in epoch 0, and notes on it.

    Args:
        encoder: the encoder of the run.
        method: the checked options of the run.

    Raises:
        ConfigError: no such row.
        DataError: training would skip the row, or stop at it.
    """
    from stepjepa.training.sampling import ExampleDraw

    place, row = row_at(rows, number)
    encoded = encoder([(place, row)])
    for skipped in encoded.report.first_skipped.values():
        raise DataError(f"{skipped}; training skips this row")
    objective, example = objective_of(method), encoded.store[0]
    # Sampling is seeded by the example's number, so the pairs that are shown are those that training draws.
    index = _examples_before(rows, number, encoder, method)
    sampled = ExampleDraw(objective, seed, method.jepa_ratio)(example, 0, index)
    form = RowForm.of(method, encoder.tokenizer)
    record = row_record(
        sampled, form, token_text(encoder.tokenizer), row_spans(row, sampled, encoder)
    )

    # The data report of this row alone; it also says why there is no pair. Its first line only counts rows.
    notes = encoded.report.lines()[1:]
    if "fewer_than_two_steps" in encoded.report.examples_without_pairs:
        notes.append(f"(stepjepa check {rows.name} shows how many steps the splitter finds)")
    return record, [*notes, *_notes(method, example, sampled, seed, index)]


def _examples_before(rows: RowSource, number: int, encoder: RowEncoder, method: JEPAOptions) -> int:
    """The number of examples that training makes of the rows before row `number`; the sampling of a row depends on it."""
    # Encoding all earlier rows takes long, so it is skipped if nothing is sampled.
    if number == 0 or not (objective_of(method).draws or method.jepa_ratio < 1):
        return 0
    before = [row for _, row in islice(rows, number)]
    try:
        return len(encode_dataset(before, encoder.tokenizer, encoder.renderer, encoder.options)[0])
    # Training keeps no example of these rows.
    except DataError:
        return 0


def _notes(
    method: JEPAOptions, example: Example, sampled: Example, seed: int, index: int
) -> Iterator[str]:
    """Notes on what training does with an example but its picture does not show; `sampled` is the example in epoch 0."""
    from stepjepa.training.sampling import keeps_pairs

    objective, pairs = objective_of(method), example.view_pairs
    epoch = f"epoch 0 with seed {seed}"
    if not objective.makes_pairs:
        yield f"no pair: the objective {method.objective} makes no pairs"
    elif pairs and not keeps_pairs(seed, 0, index, method.jepa_ratio):
        yield f"no pair in {epoch}: with {_NAME.jepa_ratio} {method.jepa_ratio:g}, this row is trained on without its pairs"
    elif pairs and not sampled.pairs:
        too_short = f"no pair: the contents are too short for {method.objective}"
        yield f"{too_short}; the row is used for plain language modelling only"
    elif pairs and objective.draws:
        yield f"{counted(len(sampled.pairs), 'pair')}, sampled for {epoch}"
    if method.forward == "two_pass":
        yield "forward two_pass: in training, every segment is a separate row, after the part of the trunk that it sees"
    if objective.separate_targets and sampled.pairs:
        yield (
            f"targets get no gradient: {_NAME.target_encoder} {method.target_encoder} encodes them in a separate pass, not "
            "in this row"
        )


def row_spans(row: object, example: Example, encoder: RowEncoder) -> tuple[NamedSpan, ...]:
    """The named spans of the trunk of a row's example."""
    if encoder.streams and is_stream(row):
        return (NamedSpan("text", 0, len(example.trunk)),)
    options = encoder.options
    return trunk_spans(encoder, CheckedChat.of(row, options, options.needs_steps, encoder.chats))


def trunk_spans(encoder: RowEncoder, chat: CheckedChat) -> tuple[NamedSpan, ...]:
    """The spans of a chat's messages and of the answers' steps among its tokens; the template's tokens have no span.

    The names are the roles, "tool call", "tool result", and "step 1" and so on for an answer's steps ("answer 2, step 1" if
    there are several answers). Empty spans are left out.

    Args:
        encoder: the encoder that makes the chat's example.
        chat: the rendered chat with its steps; without steps, whole answers are named.
    """
    ids, last = encoder.tokenised(chat)
    several = len(chat.answers) > 1
    answers = 0
    spans: list[NamedSpan] = []
    for message in chat.shown.spans:
        # Names with [start, end) in characters from the message's start.
        length = message.end - message.start
        named = {RESULT if message.role == TOOL else message.role: (0, length)}
        if message.close is not None:
            named[CALL] = (length, message.close - message.start)
        elif message.role == "assistant":
            answers += 1
            answer = f"answer {answers}" if several else "answer"
            named = {answer: (0, length)}
            if chat.step_spans is not None:
                before = f"{answer}, " if several else ""
                steps = enumerate(chat.step_spans[answers - 1], 1)
                named = {f"{before}step {number}": (step[0], step[1]) for number, step in steps}
        for name, (start, end) in named.items():
            first, stop = token_span(last, message.start + start, message.start + end)
            # The text of a call includes its end of turn, which gets no name, as after answers.
            if name == CALL and int(ids[stop - 1]) in encoder.marks:
                stop -= 1
            if first < stop:
                spans.append(NamedSpan(name, first, stop))
    return tuple(spans)
