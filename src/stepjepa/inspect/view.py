"""`inspect`: rows of a data set as a model sees them in training, in the terminal, as a picture and as a page."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepjepa.config.option import Names, check_fields, option, options_of
from stepjepa.config.parser import build
from stepjepa.data.columns import is_stream
from stepjepa.data.encode import CheckedChat, RowEncoder, encode_dataset, make_encoder, read_chat
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowSource, texts_of
from stepjepa.data.tokens import token_span
from stepjepa.data.types import Example
from stepjepa.errors import ConfigError, DataError, no_rows
from stepjepa.inspect.html import form_data, page_data, page_html, write_page
from stepjepa.inspect.layout import NamedSpan, RowForm, packing_line, row_records, token_text
from stepjepa.inspect.record import RowRecord
from stepjepa.objectives.base import objective_of
from stepjepa.objectives.options import EMA, FROZEN, SELF
from stepjepa.training.datasets import chat_tokenizer, make_renderer, settings_for
from stepjepa.training.options import ExampleOptions, JEPAOptions, summary, without_effect
from stepjepa.utils.failures import library
from stepjepa.utils.text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase


@dataclass
class RowOptions:
    """What ``stepjepa inspect`` shows."""

    file: str | None = option(None, "The data file; usually written without --file.", "inspect")
    row: int = option(0, "Which row, counted from 0.", "inspect", at_least=0)
    rows_packed: int = option(
        1, "How many examples from --row on are packed as one batch, in the order of the file.", "inspect", at_least=1
    )
    model_name: str = option(
        "mini", "Tokenizer: a Hub id, a local folder, or a preset (micro, tiny, mini: trained on the file).", "inspect"
    )
    seed: int = option(42, "Seed of what is sampled every epoch; epoch 0 is shown.", "inspect")
    png: str | None = option(None, "Write the picture of the rows to this PNG file (extra analysis).", "inspect")
    html: str | None = option(
        None, "Write a page to this file that shows, token by token, who sees whom; it needs no network.", "inspect"
    )
    overwrite: bool = option(False, "Replace existing files.", "inspect", aliases=("overwrite_output_dir",))


@dataclass
class InspectOptions(ExampleOptions, RowOptions):
    """All options of ``stepjepa inspect``; those of training mean what they mean there."""


_NAME = Names(InspectOptions)
FORMS = ("packed", "two_pass", "inline")
MOST_TOKENS = 8000  # of a form that was not asked for
_PAGE_HEIGHT = 640  # pixels, in a notebook
_PICTURE, _PAGE = (".png",), (".html", ".htm")  # suffixes


class RowView:
    """What `inspect` returns: ``print`` it, or let a notebook display it.

    Attributes:
        title: the row and the method.
        notes: what there is to say about the row.
        written: what was written to files, a line each.
    """

    def __init__(self, place: str, shown: ShownRows, notes: list[str]):
        self._shown, self.notes, self.written = shown, notes, list[str]()
        self.title = f"{place}, {summary(shown.method)}"

    @property
    def records(self) -> list[RowRecord]:
        """The packed rows (`stepjepa.inspect.record.RowRecord`)."""
        return self._shown.records

    def __str__(self) -> str:
        if self.written:
            return printable("\n".join([self.title, *self.notes, *self.written]))
        from stepjepa.inspect.terminal import draw, make_console

        console = make_console()
        with console.capture() as drawn:
            draw(self.records, console, self.title, [self._shown.packing()], self.notes)
        return drawn.get().rstrip("\n")

    def figure(self) -> Figure:
        """The rows as a picture.

        Raises:
            ConfigError: matplotlib is not installed.
        """
        from stepjepa.inspect.figure import row_figure

        return row_figure(self.records, self.title)

    def html(self) -> str:
        """The page: one file that needs no network."""
        return self._page()[0]

    def _page(self) -> tuple[str, list[str]]:
        """The page, and the forms that it shows."""
        forms, why_not = _forms_of(self._shown)
        # A note is about the rows unless some of the forms have it and others do not.
        notes_of = [set(form.notes) for form in forms.values()]
        differ = notes_of[0].union(*notes_of) - notes_of[0].intersection(*notes_of)
        texts: dict[str, int] = {}
        drawn = {}
        for name, form in forms.items():
            notes = [note for note in form.notes if note in differ]
            drawn[name] = form_data(form.records, texts, form.packing(), notes)
        asked = self._shown.form.forward
        title = self.title.removesuffix(f", {asked}")
        shared = [note for note in self.notes if note not in differ]
        return page_html(page_data(title, asked, drawn, why_not, texts, shared)), list(forms)

    def save(self, file: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the picture (``.png``) or the page (``.html``).

        Raises:
            ConfigError: another suffix, a file that exists, or one that cannot be written.
        """
        _check_output(file, overwrite, (*_PICTURE, *_PAGE))
        if Path(file).suffix.lower() in _PAGE:
            page, forms = self._page()
            write_page(page, file)
            self.written.append(f"written: {file} ({len(page) / 1e6:.2f} MB: {', '.join(forms)})")
        else:
            from stepjepa.inspect.figure import save_figure

            save_figure(self.figure(), file)
            self.written.append(f"written: {file}")

    def _repr_html_(self) -> str:
        page, title = html.escape(self.html(), quote=True), html.escape(self.title)
        return f'<iframe srcdoc="{page}" title="{title}" width="100%" height="{_PAGE_HEIGHT}"></iframe>'


def _forms_of(shown: ShownRows) -> tuple[dict[str, ShownRows], dict[str, str]]:
    """The same rows in every forward that their options allow, and why the others are not there."""
    forms, why_not = dict[str, ShownRows](), dict[str, str]()
    for name in FORMS:
        try:
            form = shown if name == shown.form.forward else shown.in_form(name)
        except (ConfigError, DataError) as error:
            why_not[name] = str(error)
            continue
        tokens = sum(map(len, form.records))
        if form is shown or tokens <= MOST_TOKENS:
            forms[name] = form
        else:
            much = f"it takes {tokens:,} tokens, too many next to another form"
            why_not[name] = f"{much}; --{_NAME.forward} {name} shows it"
    return forms, why_not


def inspect(
    data: object,
    tokenizer: str | os.PathLike[str] | PreTrainedTokenizerBase = "mini",
    row: int = 0,
    **options: Any,
) -> RowView:
    """Rows as the model sees them in training, under the options of a run, as they are sampled in the first epoch.

    Args:
        data: a file, a Hub data set's name, a `datasets.Dataset`, or a list of rows.
        tokenizer: a tokenizer, the Hub id or folder of one, or a preset, whose tokenizer is trained on `data`.
        row: counted from 0.
        options: those of ``stepjepa inspect`` by name (`RowOptions`; with ``png`` or ``html``, printing the result lists
            what was written), and the method's, as for `JEPAConfig` (``objective``, ``predictors``, ``labels``, ``forward``,
            ``max_length``, ...); those that do not change what the model sees change nothing here.

    Raises:
        ConfigError: an unknown option or a value that cannot be used, no such row, no such tokenizer, or a file that cannot
            be written.
        DataError: the data cannot be read, or training would skip the row.

    Examples:
        >>> view = inspect("train.jsonl", "tiny", objective="step_jepa", predictors=2)
        >>> print(view)
        >>> view.save("row.html")
    """
    own = taken(RowOptions, options, _NAME.file, _NAME.model_name)  # which are arguments
    given = RowOptions(row=row, **own)
    check_fields(given)
    method = method_from(options)
    files = _outputs(given)

    source = list(data) if isinstance(data, Iterator) else data
    _, place, _ = next(rows_from(source, row))
    loaded: Any = tokenizer
    if isinstance(tokenizer, (str, os.PathLike)):
        loaded = tokenizer_of(source, str(tokenizer), method)
    shown = show_rows(source, row, loaded, method, given.seed, given.rows_packed)

    notes = [str(unread) for unread in without_effect(method, options)]
    if given.overwrite and not files:
        notes.append(f"--{_NAME.overwrite} has no effect without --{_NAME.png} or --{_NAME.html}")
    view = RowView(f"row {row} ({place})", shown, [*notes, *shown.notes])
    for file in files:
        view.save(file, given.overwrite)
    return view


show_row = inspect


def _outputs(given: RowOptions) -> list[str]:
    """The files to write, the page first; ConfigError, before anything is written, for one that cannot be."""
    outputs = ((_NAME.html, given.html, _PAGE), (_NAME.png, given.png, _PICTURE))
    for name, file, suffixes in outputs:
        if file is not None:
            _check_output(file, given.overwrite, suffixes, f"--{name} ")
    if given.png is not None:
        library("matplotlib", "analysis")
    return [file for _, file, _ in outputs if file is not None]


def _check_output(file: str | os.PathLike[str], overwrite: bool, suffixes: Sequence[str], flag: str = "") -> None:
    """Refuse an output (ConfigError) that has another suffix, is a folder or exists already."""
    path = Path(file)
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"{flag}{file}: the file's name must end in {' or '.join(suffixes)}")
    if path.is_dir():
        raise ConfigError(f"{flag}{file}: is a folder; give a file")
    if path.exists() and not overwrite:
        remedy = f"--{_NAME.overwrite} to replace it" if flag else f"give {_NAME.overwrite}=True"
        raise ConfigError(f"{flag}{file}: exists; choose another name, or {remedy}")


# The examples that are shown: rows of a data set, as training samples them in epoch 0


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
        if not objective_of(self.method).makes_pairs:
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

    encoder = encoder_for(RowSource(source), tokenizer, method)
    shown = ShownRows(source, number, encoder.tokenizer, method, seed, count, RowForm.of(method, encoder.tokenizer))
    draw = ExampleDraw(objective_of(method), seed, method.jepa_ratio)
    index = _examples_before(source, number, encoder, method)
    rows_of_note: dict[str, set[int]] = {}
    kept: set[int] = set()
    for row_number, place, row in rows_from(source, number):
        if len(shown.examples) == count:
            break
        encoded = encoder([(place, row)])
        for skipped in encoded.report.first_skipped.values():
            if row_number == number:
                raise DataError(f"{skipped}; training skips this row")
            shown.notes.append(f"row {row_number} is passed over: {skipped}; training skips this row")
        for place_in_epoch, example in enumerate(islice(encoded.store, count - len(shown.examples)), index):
            sampled = draw(example, 0, place_in_epoch)
            shown.examples.append(sampled)
            shown.spans.append(row_spans(row, sampled, encoder))
            kept.add(row_number)
            for note in _notes(shown, example, sampled, place_in_epoch, encoded.report):
                rows_of_note.setdefault(note, set()).add(row_number)
        index += len(encoded.store)
    if len(shown.examples) < count:
        shown.notes.append(f"{len(shown.examples)} examples are shown: there are no more after row {number}")
    for note, numbers in rows_of_note.items():
        plural = "s" if len(numbers) > 1 else ""
        which = "" if numbers == kept else f"row{plural} {', '.join(map(str, sorted(numbers)))}: "
        shown.notes.append(which + note)
    return shown


def _examples_before(source: object, number: int, encoder: RowEncoder, method: JEPAOptions) -> int:
    """How many examples training makes of the rows before row `number`; what is sampled of a row depends on it."""
    if number == 0 or not (objective_of(method).sampled or method.jepa_ratio < 1):
        return 0
    before = [row for _, row in islice(RowSource(source), number)]
    try:
        return len(encode_dataset(before, encoder.tokenizer, encoder.renderer, encoder.options)[0])
    except DataError:
        return 0  # training keeps none of them


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
        encoders = {SELF: "", EMA: " by the EMA encoder", FROZEN: " by the model at the start of the run"}
        encoder = encoders.get(method.target_encoder, f" by {method.target_encoder}")
        yield f"targets get no gradient: they are encoded{encoder} in a pass of their own, not in this row"


def row_spans(row: object, example: Example, encoder: RowEncoder) -> tuple[NamedSpan, ...]:
    """Names for the trunk of a row's example."""
    if encoder.streams and is_stream(row):
        return (NamedSpan("text", 0, len(example.trunk)),)
    return trunk_spans(encoder, read_chat(row, encoder.chats, encoder.options))


def trunk_spans(encoder: RowEncoder, chat: CheckedChat) -> tuple[NamedSpan, ...]:
    """Where a chat's messages, and the answers' steps, are among its tokens; the template's own tokens have no span.

    Names are the roles, and "step 1" .. for an answer's steps ("answer 2, step 1" where there are several answers).
    Empty stretches are left out.

    Args:
        encoder: that makes the chat's example.
        chat: rendered, with its steps; without steps the answers are named.
    """
    _, last = encoder.tokenised(chat)
    several = len(chat.answer_spans) > 1
    answers = 0
    spans: list[NamedSpan] = []
    for message in chat.shown.spans:
        named = {message.role: (0, message.end - message.start)}
        if message.role == "assistant":
            answers += 1
            answer = f"answer {answers}" if several else "answer"
            named = {answer: (0, message.end - message.start)}
            if chat.step_spans is not None:
                before = f"{answer}, " if several else ""
                steps = enumerate(chat.step_spans[answers - 1], 1)
                named = {f"{before}step {number}": (step[0], step[1]) for number, step in steps}
        for name, (start, end) in named.items():
            first, stop = token_span(last, message.start + start, message.start + end)
            if first < stop:
                spans.append(NamedSpan(name, first, stop))
    return tuple(spans)
