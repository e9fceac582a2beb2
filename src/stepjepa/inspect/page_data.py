"""What the page of `html` holds, as plain lists and numbers: the record of every row, in every form, for every K.

The page has no rule of its own: for each token it is told the runs of tokens that it sees, read off
`forest.visibility.visible` (`RowRecord.seen_by`). The integer fields that the rule reads are there as well, so that the page
can say why.

Shapes: L positions of a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepjepa.inspect.glyphs import LETTERS, token_label
from stepjepa.inspect.lanes import lanes
from stepjepa.inspect.model import KINDS, RowRecord
from stepjepa.inspect.pairs import PairRecord
from stepjepa.inspect.prose import counts_of
from stepjepa.inspect.tube import TubeRecord, Vector
from stepjepa.utils.text import escaped

FORMS = ("packed", "two_pass", "inline")
MOST_TOKENS = 8000  # of a form that was not asked for
_BLOCK = 512  # queries whose visibility is computed at once
_FIELDS = ("ids", "positions", "examples", "segments", "orders", "attaches", "floors")


@dataclass
class FormRows:
    """The rows of one form.

    Attributes:
        records: at least one.
        packing: lines on how they are packed.
        notes: what there is to say about them.
    """

    records: Sequence[RowRecord]
    packing: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass
class Variant:
    """The forms for one number of predictors.

    Attributes:
        predictors: K; None where the objective has none.
        shown: the form that was asked for, one of `FORMS`.
        rows: form -> its rows, `shown` among them.
        why_not: form -> why it is not there.
        model: form -> for each of its rows what a model gave (`model_data`); forms without are left out.
    """

    predictors: int | None
    shown: str
    rows: Mapping[str, FormRows]
    why_not: Mapping[str, str] = field(default_factory=dict)
    model: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)


def page_data(
    title: str, variants: Sequence[Variant], notes: Sequence[str] = (), model: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """All that the page shows, ready for JSON. Text of the data is in it with control and format characters escaped.

    Args:
        title: of the page.
        variants: at least one.
        notes: what there is to say about all of them.
        model: which model gave numbers, and what is said about it: ``name`` and ``notes``.
    """
    texts: dict[str, int] = {}
    return {
        "title": escaped(title),
        "notes": [escaped(note) for note in notes],
        "model": model and {"name": escaped(model["name"]), "notes": [escaped(note) for note in model["notes"]]},
        "kinds": [{"name": kind, "letter": LETTERS[kind], "words": words} for kind, words in KINDS.items()],
        "variants": [_variant(variant, texts) for variant in variants],
        "texts": list(texts),
    }


def _variant(variant: Variant, texts: dict[str, int]) -> dict[str, Any]:
    forms = {}
    for name, form in variant.rows.items():
        given = variant.model.get(name, [{}] * len(form.records))
        forms[name] = {
            "packing": [escaped(line) for line in form.packing],
            "notes": [escaped(line) for line in form.notes],
            "rows": [row_data(record, texts) | dict(more) for record, more in zip(form.records, given, strict=True)],
        }
    return {
        "predictors": variant.predictors,
        "shown": variant.shown,
        "forms": forms,
        "whyNot": {name: escaped(why) for name, why in variant.why_not.items()},
    }


def row_data(record: RowRecord, texts: dict[str, int]) -> dict[str, Any]:
    """One row.

    Args:
        record: of the row.
        texts: labels of tokens -> their numbers; new ones are added.

    Returns:
        ``tokens`` (L,) numbers into the labels; ``ids``, ``positions``, ``examples``, ``segments``, ``orders``,
        ``attaches``, ``floors`` (L,) as in `RowRecord`; ``kinds`` (L,) numbers into `KINDS`; ``sections`` [start, stop,
        name]; ``labelled`` [start, stop) of the tokens with an LM loss, flat; ``seen`` for each token the [start, stop) of
        the runs that it sees, flat; ``pairs``; ``tube``; ``lanes`` (`lanes.Lanes`); ``counts`` in words; ``batch``.
    """
    numbers = {kind: number for number, kind in enumerate(KINDS)}
    labels = [token_label(text) for text in record.texts]
    placed = lanes(record)
    return {
        "counts": counts_of(record),
        "batch": record.batch,
        "tokens": [texts.setdefault(label, len(texts)) for label in labels],
        **{name: getattr(record, name).tolist() for name in _FIELDS},
        "kinds": [numbers[kind] for kind in record.kinds],
        "sections": [[start, stop, escaped(record.names[start])] for start, stop in record.sections()],
        "labelled": np.flatnonzero(np.diff(record.labelled, prepend=False, append=False)).tolist(),
        "seen": seen_runs(record),
        "pairs": [_pair(pair) for pair in record.pairs],
        "tube": [_tube(drawn) for drawn in record.tube],
        "lanes": {
            "columns": placed.columns.tolist(),
            "of": placed.of_section,
            "names": placed.names,
            "width": placed.width,
        },
    }


def seen_runs(record: RowRecord) -> list[list[int]]:
    """For each of the L tokens the [start, stop) of the runs of tokens that it sees, one after the other."""
    runs: list[list[int]] = []
    for start in range(0, len(record), _BLOCK):
        seen = record.seen_by(slice(start, start + _BLOCK))
        runs.extend(np.flatnonzero(np.diff(row, prepend=False, append=False)).tolist() for row in seen)
    return runs


def pair_cosines(record: RowRecord, states: np.ndarray) -> list[float]:
    """Cosine of the two states of each pair, or of the two vectors of each of the semantic tube's.

    Args:
        states: (L, D) float32, the last ones of the row's tokens.
    """

    def cosine(source: np.ndarray, target: np.ndarray) -> float:
        length = float(np.linalg.norm(source) * np.linalg.norm(target))
        return float(source @ target) / length if length else 0.0

    def vector(combined: Vector) -> np.ndarray:
        total = np.zeros(states.shape[1], np.float64)
        for term in combined.terms:
            total += term.coefficient * states[term.index]
        return total

    wide = states.astype(np.float64)
    pairs = [cosine(wide[pair.source.index], wide[pair.target.index]) for pair in record.pairs]
    return pairs + [cosine(vector(drawn.source), vector(drawn.target)) for drawn in record.tube]


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
        "apart": pair.apart,
    }


def _tube(drawn: TubeRecord) -> dict[str, Any]:
    def vector(given: Vector | None) -> dict[str, Any] | None:
        if given is None:
            return None
        terms = [[term.index, round(term.coefficient, 6)] for term in given.terms]
        return {"name": given.name, "terms": terms, "covered": given.covered}

    return {
        "example": drawn.example,
        "number": drawn.number,
        "mode": drawn.mode,
        "weight": round(drawn.weight, 6),
        "source": vector(drawn.source),
        "target": vector(drawn.target),
        "whole": vector(drawn.whole),
        "ends": [[name, term.index] for name, term in drawn.ends],
    }
