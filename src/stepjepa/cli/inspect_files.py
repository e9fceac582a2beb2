"""What ``stepjepa inspect`` writes: the picture of the rows and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stepjepa.cli.inspect_data import Found
from stepjepa.cli.inspect_model import ModelNumbers, wants_model
from stepjepa.cli.inspect_shown import Shown, form_of, show_rows
from stepjepa.errors import ConfigError, DataError
from stepjepa.inspect.figure import row_figure, save_png
from stepjepa.inspect.html import LIMIT, page_html, write_page
from stepjepa.inspect.page_data import FORMS, MOST_TOKENS, FormRows, Variant, page_data
from stepjepa.training.options import summary

_SPARE = 10_000  # bytes for what is said about a model
_LOSS = len("12.3456,")


def write_files(
    options: Any, source: Any, found: Found, shown: Sequence[Shown], place: str, notes: Sequence[str]
) -> list[str]:
    """Write the files that the options ask for; what there is to say about them.

    Args:
        options: of the command.
        found: the row that was asked for.
        shown: one for each K.
        place: of the row, in words.
        notes: on the examples.

    Raises:
        ConfigError: a file cannot be written, or the model cannot be used.
    """
    methods = summary(shown[0].method)
    if len(shown) > 1:
        counts = ", ".join(str(one.method.predictors) for one in shown)
        methods = methods.replace(f"K = {shown[0].method.predictors}", f"K = {counts}")
    title = f"{place}, {methods}"
    lines = [title, *notes]
    if options.html:  # first: it needs no further library
        lines += _write_page(options, source, found, shown, title.removesuffix(f", {form_of(shown[0].method)}"), notes)
    if options.png:
        rows = [
            (heading(one, number, len(records), len(shown)), record)
            for one in shown
            for records in [one.records()]
            for number, record in enumerate(records)
        ]
        try:
            save_png(row_figure(rows, title), options.png)
        except ConfigError as error:
            raise ConfigError(f"--png {options.png}: {error}{'; ' + lines[-1] if options.html else ''}") from None
        lines.append(f"written: {options.png}")
    return lines


def heading(one: Shown, number: int, rows: int, several: int) -> str:
    """What stands over a row: its K where there are `several`, its number where there are other `rows`."""
    parts = [f"K = {one.method.predictors}"] if several > 1 else []
    parts += [f"packed row {number + 1} of {rows}"] if rows > 1 else []
    return ", ".join(parts)


def _write_page(
    options: Any, source: Any, found: Found, shown: Sequence[Shown], title: str, notes: Sequence[str]
) -> list[str]:
    variants = [variant_of(source, found, one, options.seed, options.rows_packed) for one in shown]
    notes = of_all_forms(variants, notes)
    model = {"name": options.model_name, "notes": []} if wants_model(options) else None
    if model:
        predictors = max(variant.predictors or 0 for variant in variants)
        numbers = ModelNumbers(options, shown[0].tokenizer, predictors, shown[0].method.same_predictor)
        _add_numbers(numbers, variants, LIMIT - _SPARE - len(page_html(page_data(title, variants, notes))))
        model["notes"] = numbers.notes
    page = page_html(page_data(title, variants, notes, model))
    write_page(page, options.html)
    lines = list(numbers.notes) if model else []
    if len(page) > LIMIT:
        lines.append(
            f"the page is larger than {LIMIT / 1e6:g} MB: the rows are long; fewer --rows_packed make it smaller"
        )
    forms = [form for form in FORMS if form in variants[0].rows]
    return [*lines, f"written: {options.html} ({len(page) / 1e6:.2f} MB: {', '.join(forms)})"]


def of_all_forms(variants: Sequence[Variant], notes: Sequence[str]) -> list[str]:
    """Those of `notes` that are not about some forms alone; the forms keep only the others."""
    forms = [form for variant in variants for form in variant.rows.values()]
    general = [note for note in notes if len({note in form.notes for form in forms}) == 1]
    for form in forms:
        form.notes = [note for note in form.notes if note not in general]
    return general


def variant_of(source: Any, found: Found, one: Shown, seed: int, count: int) -> Variant:
    """The forms of one K: that of the options, and those of the others that the options allow.

    Args:
        seed, count: as for `show_rows`.
    """
    asked = form_of(one.method)
    rows: dict[str, FormRows] = {}
    why_not: dict[str, str] = {}
    for form in FORMS:
        try:
            other = one if form == asked else _in_form(source, found, one, form, seed, count)
        except (ConfigError, DataError) as error:
            why_not[form] = str(error)
            continue
        records = other.records()
        tokens = sum(map(len, records))
        if form != asked and tokens > MOST_TOKENS:
            why_not[form] = f"it takes {tokens:,} tokens, too many beside another form; --forward {form} shows it"
            continue
        rows[form] = FormRows(records, other.packing(), other.notes)
    paired = one.method.uses_pairs and one.method.objective != "semantic_tube"
    return Variant(one.method.predictors if paired else None, asked, rows, why_not)


def _in_form(source: Any, found: Found, one: Shown, form: str, seed: int, count: int) -> Shown:
    """The same examples under another ``--forward``.

    Raises:
        ConfigError: the options do not allow it.
        DataError: training would skip the row.
    """
    if not one.method.uses_pairs:
        raise ConfigError(f"objective {one.method.objective} makes no pair: every forward is the chat alone")
    method = replace(one.method, forward=form)  # type: ignore[arg-type]
    method.check()
    return show_rows(source, found, one.tokenizer, method, seed, count)


def _add_numbers(numbers: ModelNumbers, variants: Sequence[Variant], room: int) -> None:
    """Run the model over all rows; the forms that were asked for share the room for attention first."""
    asked = [(variant, variant.shown) for variant in variants]
    others = [(variant, form) for variant in variants for form in variant.rows if form != variant.shown]
    for variant, form in (*asked, *others):
        room -= _LOSS * sum(int(record.labelled.sum()) + len(record.pairs) for record in variant.rows[form].records)
    for group in (asked, others):
        for left, (variant, form) in zip(range(len(group), 0, -1), group, strict=True):
            given, said = numbers.of_rows(variant.rows[form].records, max(room, 0) // left)
            room -= sum(len(row.get("attention", {}).get("weights", "")) for row in given)
            variant.model = {**variant.model, form: given}
            form_rows = variant.rows[form]
            form_rows.notes = [*form_rows.notes, *said]
