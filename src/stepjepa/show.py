"""One row as a model sees it in training, from Python: what ``stepjepa inspect`` shows, as text, figure and page."""

from __future__ import annotations

import copy
import html
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepjepa.cli.inspect_data import Found, find_row, tokenizer_for
from stepjepa.cli.inspect_row import drawing, titled
from stepjepa.cli.inspect_shown import Shown, form_of, show_rows
from stepjepa.config.values import nearest
from stepjepa.errors import ConfigError
from stepjepa.training.options import JEPAOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PAGE_HEIGHT = 640  # pixels, in a notebook
_SUFFIXES = {".png": "png", ".html": "html", ".htm": "html"}


class RowView:
    """What `show_row` returns: ``print`` it, or let a notebook display it.

    Attributes:
        title: the row and the method, in a few words.
        notes: what there is to say about the row.
        records: the packed rows, with tokens, segments, positions, labels, pairs, readouts and who sees whom
            (`stepjepa.inspect.model.RowRecord`).
    """

    def __init__(self, source: Any, found: Found, shown: Shown, seed: int, rows_packed: int):
        self._source, self._found, self._shown = source, found, shown
        self._seed, self._rows_packed = seed, rows_packed
        self._place = f"row {found.number} ({found.place})"
        self.title = f"{self._place}, {titled([shown.method])}"
        self.notes = list(shown.notes)

    @cached_property
    def records(self) -> list[Any]:
        """The packed rows (`stepjepa.inspect.model.RowRecord`)."""
        return self._shown.records()

    def __str__(self) -> str:
        return drawing([self._shown], self._place, self.notes)

    def figure(self) -> Figure:
        """The rows as a picture.

        Raises:
            ConfigError: matplotlib is not installed.
        """
        from stepjepa.cli.inspect_files import heading
        from stepjepa.inspect.figure import row_figure

        heads = [heading(self._shown, number, len(self.records), 1) for number in range(len(self.records))]
        return row_figure(list(zip(heads, self.records, strict=True)), self.title)

    def html(self) -> str:
        """The page of ``stepjepa inspect --html``: one file, with no network."""
        from stepjepa.cli.inspect_files import of_all_forms, variant_of
        from stepjepa.inspect.html import page_html
        from stepjepa.inspect.page_data import page_data

        variants = [variant_of(self._source, self._found, self._shown, self._seed, self._rows_packed)]
        title = self.title.removesuffix(f", {form_of(self._shown.method)}")  # the page shows every form
        return page_html(page_data(title, variants, of_all_forms(variants, self.notes)))

    def save(self, file: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the picture (``.png``) or the page (``.html``).

        Raises:
            ConfigError: another suffix, a file that exists, or one that cannot be written.
        """
        path = Path(file)
        kind = _SUFFIXES.get(path.suffix.lower())
        if kind is None:
            raise ConfigError(f"{file}: the file's name must end in {' or '.join(_SUFFIXES)}")
        if path.is_dir() or (path.exists() and not overwrite):
            what = "is a folder" if path.is_dir() else "exists; choose another name, or give overwrite=True"
            raise ConfigError(f"{file}: {what}")
        if kind == "png":
            from stepjepa.inspect.figure import save_png

            save_png(self.figure(), str(file))
        else:
            from stepjepa.inspect.html import write_page

            write_page(self.html(), str(file))

    def _repr_html_(self) -> str:
        page = html.escape(self.html(), quote=True)
        return (
            f'<iframe srcdoc="{page}" title="{html.escape(self.title)}" width="100%" height="{_PAGE_HEIGHT}"></iframe>'
        )


def show_row(
    data: Any, tokenizer: Any = "mini", row: int = 0, *, rows_packed: int = 1, seed: int = 42, **options: Any
) -> RowView:
    """What a model is fed of one row, under the options of a run, as training draws it in the first epoch.

    Args:
        data: a file, a Hub data set's name, a `datasets.Dataset`, or a list of rows.
        tokenizer: a tokenizer, the Hub id or folder of one, or a preset, whose tokenizer is trained on `data`.
        row: counted from 0.
        rows_packed: examples that are shown together, from `row` on.
        seed: of what is drawn.
        options: the method's, as for `JEPAConfig` (``objective``, ``predictors``, ``step_pairs``, ``labels``, ``forward``,
            ``max_length``, ...); those that do not change what a model is fed change nothing here.

    Raises:
        ConfigError: an unknown option or a value that cannot be used, no such row, or no such tokenizer.
        DataError: the data cannot be read, or training would skip the row.

    Examples:
        >>> view = show_row("train.jsonl", "tiny", objective="step_jepa", predictors=2)
        >>> print(view)
        >>> view.save("row.html")
    """
    for name in options:
        if name not in JEPAOptions.__dataclass_fields__:
            known = list(JEPAOptions.__dataclass_fields__)
            raise ConfigError(f"show_row: unknown option {name!r}; did you mean {nearest(name, known)!r}?")
    for name, value, least in (("row", row, 0), ("rows_packed", rows_packed, 1)):
        if type(value) is not int or value < least:
            raise ConfigError(f"show_row: {name} is {value!r}; it must be a whole number from {least} on")
    method = JEPAOptions(**options)
    method.check()
    source = list(data) if isinstance(data, Iterator) else data
    found = find_row(source, row)
    if isinstance(tokenizer, (str, os.PathLike)):
        tokenizer = tokenizer_for(source, str(tokenizer), method)
    else:
        tokenizer = copy.copy(tokenizer)  # the options may give it another template
    return RowView(source, found, show_rows(source, found, tokenizer, method, seed, rows_packed), seed, rows_packed)
