"""`inspect`: rows as a model sees them in training, in the terminal, as a picture and as a page."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepjepa.config.option import Names, check_fields, option
from stepjepa.errors import ConfigError, DataError
from stepjepa.inspect.html import FORMS, form_data, page_data, page_html, write_page
from stepjepa.inspect.record import RowRecord
from stepjepa.inspect.rows import ShownRows, method_from, rows_from, show_rows, taken, tokenizer_of
from stepjepa.objectives.base import objective_of
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

    predictors: int | list[int] | None = option(  # type: ignore[assignment]
        None,
        "K, learned predictor tokens after a source view; several numbers are shown side by side. Default: 2 for step_jepa, "
        "1 for split, else 0.",
        "method",
    )


_NAME = Names(InspectOptions)
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

    def __init__(self, place: str, shown: list[ShownRows], notes: list[str]):
        self._shown, self.notes, self.written = shown, notes, list[str]()
        method = shown[0].method
        counts = ", ".join(str(one.method.predictors) for one in shown)
        words = summary(method).replace(f"K = {method.predictors}", f"K = {counts}")
        self.title = f"{place}, {words}"

    @property
    def records(self) -> list[RowRecord]:
        """The packed rows of the first K (`stepjepa.inspect.record.RowRecord`)."""
        return self._shown[0].records

    def _rows(self) -> list[tuple[str, RowRecord]]:
        """A heading for each row, and its record: of every K."""
        rows = []
        for one in self._shown:
            for number, record in enumerate(one.records, 1):
                parts = [f"K = {one.method.predictors}"] if len(self._shown) > 1 else []
                parts += [f"packed row {number} of {len(one.records)}"] if len(one.records) > 1 else []
                rows.append((", ".join(parts), record))
        return rows

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
        """The page: one file that needs no network."""
        return self._page()[0]

    def _page(self) -> tuple[str, list[str]]:
        """The page, and the forms that it shows."""
        forms = [_forms_of(one) for one in self._shown]
        own_notes = [set(form.notes) for of_one, _ in forms for form in of_one.values()]
        # A note is about the rows unless some of the forms have it and others do not.
        differ = own_notes[0].union(*own_notes) - own_notes[0].intersection(*own_notes)
        shared = [note for note in self.notes if note not in differ]
        texts, variants = dict[str, int](), list[dict[str, Any]]()
        for one, (of_one, why_not) in zip(self._shown, forms, strict=True):
            drawn = {}
            for name, form in of_one.items():
                notes = [note for note in form.notes if note in differ]
                drawn[name] = form_data(form.records, texts, form.packing(), notes)
            variant = {"forms": drawn, "whyNot": why_not, "shown": one.form.forward}
            variant["predictors"] = objective_of(one.method).predictors
            variants.append(variant)
        asked = self._shown[0].form.forward
        title = self.title.removesuffix(f", {asked}")
        page = page_html(page_data(title, variants, texts, shared))
        return page, list(forms[0][0])

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
        if name == shown.form.forward:
            forms[name] = shown
            continue
        try:
            other = shown.in_form(name)
        except (ConfigError, DataError) as error:
            why_not[name] = str(error)
            continue
        tokens = sum(map(len, other.records))
        if tokens <= MOST_TOKENS:
            forms[name] = other
        else:
            much = f"it takes {tokens:,} tokens, too many next to another form"
            why_not[name] = f"{much}; --{_NAME.forward} {name} shows it"
    return forms, why_not


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
    own = taken(RowOptions, options, _NAME.file, _NAME.model_name)  # which are arguments
    given = RowOptions(row=row, **own)
    check_fields(given)
    methods: dict[int, JEPAOptions] = {}
    for count in predictors if isinstance(predictors, Sequence) else [predictors]:
        method = method_from({**options, _NAME.predictors: count})
        methods.setdefault(objective_of(method).predictors, method)
    first = next(iter(methods.values()))
    files = _outputs(given)

    source = list(data) if isinstance(data, Iterator) else data
    _, place, _ = next(rows_from(source, row))
    loaded: Any = tokenizer
    if isinstance(tokenizer, (str, os.PathLike)):
        loaded = tokenizer_of(source, str(tokenizer), first)
    shown = [show_rows(source, row, loaded, method, given.seed, given.rows_packed) for method in methods.values()]

    asked = {*options} if predictors is None else {*options, _NAME.predictors}
    notes = [str(unread) for unread in without_effect(first, asked)]
    if given.overwrite and not files:
        notes.append(f"--{_NAME.overwrite} has no effect without --{_NAME.png} or --{_NAME.html}")
    notes += dict.fromkeys(note for one in shown for note in one.notes)
    view = RowView(f"row {row} ({place})", shown, notes)
    for file in files:
        view.save(file, given.overwrite)
    return view


show_row = inspect


def _outputs(given: RowOptions) -> list[str]:
    """The files to write, the page first; ConfigError, before anything is written, for one that cannot be."""
    files = []
    for name, file, suffixes in ((_NAME.html, given.html, _PAGE), (_NAME.png, given.png, _PICTURE)):
        if file is not None:
            _check_output(file, given.overwrite, suffixes, f"--{name} ")
            files.append(file)
    if given.png is not None:
        library("matplotlib", "analysis")
    return files


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
