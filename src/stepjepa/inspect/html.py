"""A page that explains a row: one file, with its style, its script and its data in it, that needs no network.

The page has no rule of its own: for each token it is given the runs of tokens that it sees (`RowRecord.seen_by`), and the
integer fields that the rule reads, so that it can say why. Text of the data reaches the page as JSON inside a script element
of a type that no browser runs, and from there the document as text. The page's Content-Security-Policy forbids all
connections, and every script but its own, known by its hash.

Shapes: L positions of a row.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from stepjepa.errors import ConfigError
from stepjepa.inspect.record import FIELDS, PairRecord, RowRecord, TubeRecord, Vector
from stepjepa.inspect.style import KINDS, counts_of, lanes, letter_colour, token_label
from stepjepa.utils.files import write_whole
from stepjepa.utils.text import escaped

FORMS = ("packed", "two_pass", "inline")
LIMIT = 3_000_000  # bytes of a page
_BLOCK = 512  # queries whose visibility is computed at once
_PARTS = files("stepjepa.inspect") / "page"
_SCRIPTS = ("data.js", "tokens.js", "mask.js", "zoom.js", "forest.js", "pairs.js", "page.js")
_POLICY = "default-src 'none'; script-src '{script}'; style-src '{style}'; base-uri 'none'; form-action 'none'"


@dataclass
class FormRows:
    """The rows of one form.

    Attributes:
        records: at least one.
        packing: a line on how they are packed.
        notes: what there is to say about them.
        model: for each record what a model gave (`model.RowNumbers`); none where no model was asked.
    """

    records: Sequence[RowRecord]
    packing: str = ""
    notes: list[str] = field(default_factory=list)
    model: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Variant:
    """The forms for one number of predictors.

    Attributes:
        predictors: K; None where the objective has none.
        shown: the form that was asked for, one of `FORMS`.
        rows: form -> its rows, `shown` among them.
        why_not: form -> why it is not there.
    """

    predictors: int | None
    shown: str
    rows: dict[str, FormRows] = field(default_factory=dict)
    why_not: dict[str, str] = field(default_factory=dict)


def page_data(
    title: str,
    variants: Sequence[Variant],
    notes: Sequence[str] = (),
    model: str | None = None,
    model_notes: Sequence[str] = (),
) -> dict[str, Any]:
    """All that the page shows, ready for JSON. Text of the data is in it with control and format characters escaped.

    Args:
        title: of the page.
        variants: at least one.
        notes: what there is to say about all of them.
        model: which model gave numbers, with `model_notes`; None for no model.
    """
    texts: dict[str, int] = {}
    given = {"name": escaped(model), "notes": list(map(escaped, model_notes))} if model is not None else None
    return {
        "title": escaped(title),
        "notes": list(map(escaped, notes)),
        "model": given,
        "kinds": [{"name": name, "letter": kind.letter, "words": kind.meaning} for name, kind in KINDS.items()],
        "variants": [
            {
                "predictors": variant.predictors,
                "shown": variant.shown,
                "forms": {name: _form(form, texts) for name, form in variant.rows.items()},
                "whyNot": {name: escaped(why) for name, why in variant.why_not.items()},
            }
            for variant in variants
        ],
        "texts": list(texts),
    }


def _form(form: FormRows, texts: dict[str, int]) -> dict[str, Any]:
    given = form.model or [{}] * len(form.records)
    return {
        "packing": [escaped(form.packing)] if form.packing else [],
        "notes": list(map(escaped, form.notes)),
        "rows": [row_data(record, texts) | more for record, more in zip(form.records, given, strict=True)],
    }


def row_data(record: RowRecord, texts: dict[str, int]) -> dict[str, Any]:
    """One row.

    Args:
        texts: labels of tokens -> their numbers; new ones are added.

    Returns:
        ``tokens`` (L,) numbers into the labels; the integer fields of `RowRecord`, (L,) each; ``kinds`` (L,) numbers into
        `KINDS`; ``sections`` [start, stop, name]; ``labelled`` [start, stop) of the tokens with an LM loss, flat; ``seen``
        for each token the [start, stop) of the runs that it sees, flat; ``pairs``; ``tube``; ``lanes`` (`style.Lanes`);
        ``counts``; ``batch``.
    """
    numbers = {kind: number for number, kind in enumerate(KINDS)}
    placed = lanes(record)
    return {
        "counts": counts_of(record),
        "batch": record.batch,
        "tokens": [texts.setdefault(token_label(text), len(texts)) for text in record.texts],
        **{name: getattr(record, name).tolist() for name in FIELDS.values()},
        "kinds": [numbers[kind] for kind in record.kinds],
        "sections": [[start, stop, escaped(record.names[start])] for start, stop in record.sections],
        "labelled": _edges(record.labelled),
        "seen": [
            _edges(row)
            for start in range(0, len(record), _BLOCK)
            for row in record.seen_by(slice(start, start + _BLOCK))
        ],
        "pairs": [_pair(pair) for pair in record.pairs],
        "tube": [_tube(pair) for pair in record.tube],
        "lanes": {
            "columns": placed.columns.tolist(),
            "of": placed.of_section,
            "names": placed.names,
            "width": placed.width,
        },
    }


def _edges(marks: np.ndarray) -> list[int]:
    """[start, stop) of the runs of true marks, one after the other."""
    return np.flatnonzero(np.diff(marks, prepend=False, append=False)).tolist()


def _pair(pair: PairRecord) -> dict[str, Any]:
    return {
        "example": pair.example,
        "number": pair.number,
        "sourceEnd": pair.source_end.index,
        "source": pair.source.index,
        "target": pair.target.index,
        "sourceSegment": pair.source_segment,
        "original": pair.original,
        "copy": pair.copy,
        "apart": pair.standalone,
    }


def _tube(pair: TubeRecord) -> dict[str, Any]:
    def vector(given: Vector | None) -> dict[str, Any] | None:
        if given is None:
            return None
        terms = [[term.index, round(term.coefficient, 6)] for term in given.terms]
        return {"name": given.name, "terms": terms, "covered": given.covered}

    return {
        "example": pair.example,
        "number": pair.number,
        "mode": pair.mode,
        "weight": round(pair.weight, 6),
        "source": vector(pair.source),
        "target": vector(pair.target),
        "whole": vector(pair.total),
        "ends": [[name, term.index] for name, term in pair.ends],
    }


def page_html(data: Mapping[str, Any]) -> str:
    """The page, in ASCII, of what `page_data` returns."""
    style, script = _colours() + base_style() + _part("page.css"), "".join(map(_part, _SCRIPTS))
    policy = _POLICY.format(style=element_hash(style), script=element_hash(script))
    page = _part("page.html")
    # The data last: no text in it is taken for a place to fill.
    for name, text in (("policy", policy), ("style", style), ("script", script), ("data", script_json(data))):
        page = page.replace(f"{{{{{name}}}}}", text, 1)
    return page


def script_json(data: Any) -> str:
    """JSON for the inside of a script element: ASCII, without any character that HTML reads."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def write_page(page: str, path: str | os.PathLike[str]) -> None:
    """Write a page with an atomic write.

    Raises:
        ConfigError: it could not be written; an earlier file is unchanged.
    """
    write_bytes(path, page.encode("ascii"))


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file with an atomic write, its folder too.

    Raises:
        ConfigError: as `write_page`.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [content])
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from None


def element_hash(text: str) -> str:
    """The hash by which a Content-Security-Policy names a style or a script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def base_style() -> str:
    """The CSS of every page: paper and ink in light and dark, and the switch between them."""
    return _part("base.css")


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="ascii")


def _colours() -> str:
    """The kinds' colours as CSS: ``--k`` for each class ``k-...``, and ``--on-k`` for letters on it."""
    rules = []
    for name, kind in KINDS.items():
        on = f"light-dark({letter_colour(kind.light)}, {letter_colour(kind.dark)})"
        rules.append(f".k-{name} {{ --k: light-dark({kind.light}, {kind.dark}); --on-k: {on}; }}")
    predictor = KINDS["predictor"]
    return "\n".join([f":root {{ --k-predictor: light-dark({predictor.light}, {predictor.dark}); }}", *rules, ""])
