"""`inspect`: rows as a model sees them in training, in the terminal, as a picture and as a page."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepjepa.config.option import Names, check_fields, option, unread_options
from stepjepa.errors import ConfigError, DataError
from stepjepa.inspect.html import FORMS, LIMIT, ModelNumbers, form_data, page_data, page_html, write_page
from stepjepa.inspect.record import RowRecord
from stepjepa.inspect.rows import ShownRows, method_from, rows_from, show_rows, taken, tokenizer_of
from stepjepa.objectives.base import objective_of
from stepjepa.training.options import ExampleOptions, JEPAOptions, summary, without_effect
from stepjepa.utils.failures import library
from stepjepa.utils.text import escaped, printable

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
    run_model: bool | None = option(
        None,
        "Run the model of --model_name for the page: cosine of each pair, LM loss of each token, attention. Default: where "
        "it is a local folder. A preset's weights are random.",
        "inspect",
        needs={"html": True},
    )
    attention_layers: list[int] | None = option(
        None,
        "Layers, from 1 on, whose attention the page holds. Default: as many as fit.",
        "inspect",
        needs={"html": True},
    )
    overwrite: bool = option(False, "Replace existing files.", "inspect", aliases=("overwrite_output_dir",))


@dataclass
class InspectOptions(ExampleOptions, RowOptions):
    """All options of ``stepjepa inspect``; those of training mean what they mean there."""

    predictors: int | list[int] | None = option(  # type: ignore[assignment]
        None,
        "K, learned predictor tokens after a source view; several numbers are shown side by side. Default: 2 for step_jepa, "
        "1 for split, else 0.",
        "method",
    )


_NAME = Names(InspectOptions)
MOST_TOKENS = 8000  # of a form that was not asked for
_PAGE_HEIGHT = 640  # pixels, in a notebook
_SPARE = 10_000  # bytes for what is said about a model
_LOSS = len("12.3456,")
_PICTURE, _PAGE = (".png",), (".html", ".htm")  # suffixes
_Form = tuple[Sequence[RowRecord], dict[str, Any]]  # and what the page shows of them


class RowView:
    """What `inspect` returns: ``print`` it, or let a notebook display it.

    Attributes:
        title: the row and the method.
        notes: what there is to say about the row.
        written: what was written to files, a line each.
    """

    def __init__(
        self, place: str, shown: list[ShownRows], notes: list[str], model: str | None, layers: list[int] | None
    ):
        self._shown, self._model, self._layers = shown, model, layers
        self.notes, self.written = notes, list[str]()
        first = shown[0].method
        counts = ", ".join(str(one.method.predictors) for one in shown)
        self.title = f"{place}, {summary(first).replace(f'K = {first.predictors}', f'K = {counts}')}"

    @property
    def records(self) -> list[RowRecord]:
        """The packed rows of the first K (`stepjepa.inspect.record.RowRecord`)."""
        return self._shown[0].records

    def _rows(self) -> list[tuple[str, RowRecord]]:
        """A heading for each row, and its record: of every K."""
        found = []
        for one in self._shown:
            for number, record in enumerate(one.records, 1):
                parts = [f"K = {one.method.predictors}"] if len(self._shown) > 1 else []
                parts += [f"packed row {number} of {len(one.records)}"] if len(one.records) > 1 else []
                found.append((", ".join(parts), record))
        return found

    def __str__(self) -> str:
        if self.written:
            return printable("\n".join([self.title, *self.notes, *self.written]))
        from stepjepa.inspect.terminal import draw, make_console

        console, several = make_console(), len(self._shown) > 1
        packing = [f"K = {one.method.predictors}: " * several + one.packing() for one in self._shown]
        with console.capture() as drawn:
            draw(self._rows(), console, self.title, self.notes, packing)
        return drawn.get().rstrip("\n")

    def figure(self) -> Figure:
        """The rows as a picture.

        Raises:
            ConfigError: matplotlib is not installed.
        """
        from stepjepa.inspect.figure import row_figure

        return row_figure(self._rows(), self.title)

    def html(self) -> str:
        """The page: one file that needs no network, with a model's numbers where `inspect` was asked for them.

        Raises:
            ConfigError: the model cannot be used.
        """
        return self._page()[0]

    def _page(self) -> tuple[str, list[str]]:
        """The page, and what there is to say about it."""
        first, texts = self._shown[0], dict[str, int]()
        made = [self._forms(one) for one in self._shown]
        every = [form for forms, _ in made for form in forms.values()]
        notes = [note for note in self.notes if len({note in form.notes for form in every}) == 1]
        variants, asked, others = list[dict[str, Any]](), list[_Form](), list[_Form]()
        for one, (forms, why_not) in zip(self._shown, made, strict=True):
            shown, drawn = one.form.forward, {}
            for name, form in forms.items():  # the forms keep only what is not about all of them
                own = [note for note in form.notes if note not in notes]
                drawn[name] = form_data(form.records, texts, form.packing(), own)
                (asked if name == shown else others).append((form.records, drawn[name]))
            known = objective_of(one.method).predictors
            variants.append({"predictors": known, "shown": shown, "forms": drawn, "whyNot": why_not})
        data = page_data(self.title.removesuffix(f", {first.form.forward}"), variants, texts, notes)
        page, said = page_html(data), list[str]()
        if self._model is not None:
            predictors = max((one.form.predictor_names for one in self._shown), key=len)
            numbers = ModelNumbers(self._model, first.tokenizer, predictors, first.seed, self._layers)
            _add_numbers(numbers, asked, others, LIMIT - _SPARE - len(page))
            said = numbers.notes
            data["model"] = {"name": escaped(self._model), "notes": list(map(escaped, said))}
            page = page_html(data)
        if len(page) > LIMIT:
            remedy = f"the rows are long; fewer --{_NAME.rows_packed} make it smaller"
            said = [*said, f"the page is larger than {LIMIT / 1e6:g} MB: {remedy}"]
        return page, [*said, f"({len(page) / 1e6:.2f} MB: {', '.join(variants[0]['forms'])})"]

    def _forms(self, one: ShownRows) -> tuple[dict[str, ShownRows], dict[str, str]]:
        """The forms of one K, that of its options among them, and why the others are not there."""
        forms, why_not = dict[str, ShownRows](), dict[str, str]()
        for name in FORMS:
            try:
                other = one if name == one.form.forward else one.in_form(name)
            except (ConfigError, DataError) as error:
                why_not[name] = str(error)
                continue
            tokens = sum(map(len, other.records))
            if other is one or tokens <= MOST_TOKENS:
                forms[name] = other
            else:
                much = f"it takes {tokens:,} tokens, too many next to another form"
                why_not[name] = f"{much}; --{_NAME.forward} {name} shows it"
        return forms, why_not

    def save(self, file: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the picture (``.png``) or the page (``.html``).

        Raises:
            ConfigError: another suffix, a file that exists, or one that cannot be written.
        """
        _check_output((*_PICTURE, *_PAGE), file, overwrite, f"{file}", f"give {_NAME.overwrite}=True")
        self._write(file)

    def _write(self, file: str | os.PathLike[str]) -> None:
        if Path(file).suffix.lower() in _PAGE:
            page, said = self._page()
            write_page(page, file)
            self.written += [*said[:-1], f"written: {file} {said[-1]}"]
            return
        from stepjepa.inspect.figure import save_figure

        save_figure(self.figure(), file)
        self.written.append(f"written: {file}")

    def _repr_html_(self) -> str:
        page, title = html.escape(self.html(), quote=True), html.escape(self.title)
        return f'<iframe srcdoc="{page}" title="{title}" width="100%" height="{_PAGE_HEIGHT}"></iframe>'


def inspect(
    data: object,
    tokenizer: str | os.PathLike[str] | PreTrainedTokenizerBase = "mini",
    row: int = 0,
    *,
    predictors: int | Sequence[int] | None = None,
    **options: Any,
) -> RowView:
    """Rows as the model sees them in training, under the options of a run, as they are sampled in the first epoch.

    Args:
        data: a file, a Hub data set's name, a `datasets.Dataset`, or a list of rows.
        tokenizer: a tokenizer, the Hub id or folder of one, or a preset, whose tokenizer is trained on `data`.
        row: counted from 0.
        predictors: K, as for `JEPAConfig`; several are shown next to each other.
        options: those of ``stepjepa inspect`` by name (`RowOptions`; with ``png`` or ``html``, printing the result lists
            what was written), and the method's, as for `JEPAConfig` (``objective``, ``step_pairs``, ``labels``, ``forward``,
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
    from stepjepa.modeling.load import is_preset

    own = taken(RowOptions, options, _NAME.file, _NAME.model_name)  # which are arguments
    given = RowOptions(row=row, **own)
    check_fields(given)
    methods: dict[int, JEPAOptions] = {}
    for count in predictors if isinstance(predictors, Sequence) else [predictors]:
        method = method_from({**options, _NAME.predictors: count})
        methods.setdefault(objective_of(method).predictors, method)
    first, files = next(iter(methods.values())), list[str]()
    # The page first: it needs no further library.
    for suffixes, name, file in ((_PAGE, _NAME.html, given.html), (_PICTURE, _NAME.png, given.png)):
        if file is not None:
            _check_output(suffixes, file, given.overwrite, f"--{name} {file}", f"--{_NAME.overwrite} to replace it")
            files.append(file)
    if given.png is not None:
        try:
            library("matplotlib", "analysis")
        except ConfigError as error:  # before anything is written
            raise ConfigError(f"--{_NAME.png} {given.png}: {error}") from None
    source = list(data) if isinstance(data, Iterator) else data
    _, place, _ = next(rows_from(source, row))
    model = str(tokenizer) if isinstance(tokenizer, (str, os.PathLike)) else None
    loaded: Any = tokenizer if model is None else tokenizer_of(source, model, first)
    shown = [show_rows(source, row, loaded, method, given.seed, given.rows_packed) for method in methods.values()]
    notes = [
        str(unread) for unread in without_effect(first, {*options, *[_NAME.predictors] * (predictors is not None)})
    ]
    notes += map(str, unread_options(given, (one for one, value in own.items() if value is not None)))
    if given.overwrite and not files:
        notes.append(f"--{_NAME.overwrite} has no effect without --{_NAME.png} or --{_NAME.html}")
    notes += dict.fromkeys(note for one in shown for note in one.notes)
    run_model = given.run_model
    if run_model is None:  # by default the model in a local folder is run
        run_model = model is not None and os.path.isdir(model) and not is_preset(model)
    view = RowView(f"row {row} ({place})", shown, notes, model if run_model else None, given.attention_layers)
    for file in files:
        try:
            view._write(file)
        except ConfigError as error:
            what = f"--{_NAME.png} {file}: {error}" if file == given.png else str(error)
            raise ConfigError("; ".join([what, *view.written[-1:]])) from None
    return view


show_row = inspect


def _check_output(
    suffixes: Sequence[str], file: str | os.PathLike[str], overwrite: bool, what: str, remedy: str
) -> None:
    """Refuse an output (ConfigError) that has another suffix, is a folder, or exists already."""
    path = Path(file)
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"{what}: the file's name must end in {' or '.join(suffixes)}")
    if path.is_dir():
        raise ConfigError(f"{what}: is a folder; give a file")
    if path.exists() and not overwrite:
        raise ConfigError(f"{what}: exists; choose another name, or {remedy}")


def _add_numbers(numbers: ModelNumbers, asked: Sequence[_Form], others: Sequence[_Form], room: int) -> None:
    """Run the model over all rows; the forms that were asked for share the room for attention first."""
    for records, _ in (*asked, *others):
        room -= _LOSS * sum(int(record.labelled.sum()) + len(record.pairs) for record in records)
    for group in (asked, others):
        for left, (records, form) in zip(range(len(group), 0, -1), group, strict=True):
            share, notes = max(room, 0) // left // len(records), dict[str, None]()
            for record, row in zip(records, form["rows"], strict=True):
                more, note = numbers.of_row(record, share)
                room -= len(more.get("attention", {}).get("weights", ""))
                row.update(more)
                notes[escaped(note)] = None
            form["notes"] += notes
