"""The measures of several models on the same pairs, and their tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stepjepa.analysis import geometry
from stepjepa.analysis.geometry import ADVICE, MIN_ROWS, CollapseSign, GeometryNumbers
from stepjepa.analysis.prediction import PredictionErrors, prediction_errors
from stepjepa.analysis.states import FINAL, States, check_alike
from stepjepa.modeling.card import collapse_words
from stepjepa.utils.text import text_table, written

_FEW = f"fewer than {MIN_ROWS} pairs for fitting, validation or testing"
# Column of a table -> attribute, format, meaning in the legend.
_Columns = Mapping[str, tuple[str, str, str]]
_PAIRS: _Columns = {
    "cosine": ("aligned_mean", ".4f", "mean over the pairs"),
    "shuffled": ("shuffled_mean", ".4f", "mean over sources with the targets of other pairs"),
    "gap": ("gap", ".4f", "cosine minus shuffled"),
    "d'": ("d_prime", ".2f", "the gap in standard deviations"),
    "@1": ("retrieval_at_1", ".1%", "sources whose own target is the nearest of all"),
    "MRR": ("mrr", ".3f", "mean of 1 / rank of a source's own target"),
}
_VIEWS: _Columns = {
    "eff. rank": (
        "effective_rank",
        ".1f",
        "effective number of directions of the states, 1 at collapse",
    ),
    "own cosine": ("pairwise_cosine", ".3f", "mean cosine between two states of a view"),
}
_TOP: _Columns = {
    "top 100 s-t": (
        "difference_top_100",
        ".4g",
        "mean of the 100 largest singular values of source minus target",
    ),
}
# Methods of prediction, which are the rows of their table, not its columns.
_PREDICTION: _Columns = {
    "line": (
        "line",
        ".3g",
        "continues along the last step; an error of 0 is perfect, 1 is as bad as the mean state",
    ),
    "linear": ("linear", ".3g", "a ridge regression, fitted on other rows"),
    "MLP": ("mlp", ".3g", "three layers, fitted on other rows"),
}


@dataclass(frozen=True)
class ModelGeometry:
    """The measures of one model.

    Attributes:
        model: name or folder.
        layers: layer -> measures over all pairs.
        collapse: signs of collapse in the layer of the tables.
        prediction: horizon -> errors of predicting later states; None if not requested.
    """

    model: str
    layers: dict[int, GeometryNumbers]
    collapse: list[CollapseSign]
    prediction: dict[int, PredictionErrors] | None


@dataclass(frozen=True)
class GeometryComparison:
    """Several models on the same pairs. Its `str` is tables with a line per model, and the signs of collapse.

    Attributes:
        file: the data file.
        n: number of pairs.
        layer: the last layer, which the tables and single-layer figures show.
        models: label -> measures, in the order of the command.
    """

    file: str
    n: int
    layer: int
    models: dict[str, ModelGeometry]

    @property
    def shown(self) -> dict[str, GeometryNumbers]:
        """The measures of every model in the layer of the tables."""
        return {label: model.layers[self.layer] for label, model in self.models.items()}

    def __str__(self) -> str:
        where = "after the final norm" if self.layer == FINAL else f"of layer {self.layer}"
        lines = [f"{self.n:,} pairs of {self.file}, states {where}"]
        lines += [*self._pairs(), *self._views(), *self._prediction(), ""]
        return "\n".join([*lines, *self._collapse()])

    def _pairs(self) -> Iterator[str]:
        rows = [[label, *_row(_PAIRS, measures.pairs)] for label, measures in self.shown.items()]
        chance = next(iter(self.shown.values())).pairs
        rows.append(
            [
                "chance",
                *[""] * 4,
                written(chance.chance_at_1, ".1%"),
                written(chance.chance_mrr, ".3f"),
            ]
        )
        yield from _table(["pairs", *_PAIRS], rows, _PAIRS)

    def _views(self) -> Iterator[str]:
        rows = []
        for label, measures in self.shown.items():
            views = _row(_VIEWS, measures.source, measures.target)
            rows.append([label, *views, *_row(_TOP, measures)])
        columns = {**_VIEWS, **_TOP}
        yield from _table(["states (source, target)", *columns], rows, columns)

    def _prediction(self) -> Iterator[str]:
        """Errors of predicting later states, by horizon."""
        known = {
            label: model.prediction
            for label, model in self.models.items()
            if model.prediction is not None
        }
        horizons = sorted({horizon for errors in known.values() for horizon in errors})
        if not known:
            return
        if not horizons:
            yield from ("", f"no later state is predicted: {_FEW}; read more rows")
            return
        rows = []
        for name, (attribute, form, _) in _PREDICTION.items():
            for label, errors in known.items():
                values = [getattr(errors.get(horizon), attribute, None) for horizon in horizons]
                rows.append([f"{name}, {label}", *(written(value, form) for value in values)])
        head = ["error of a state h steps later", *(f"h = {horizon}" for horizon in horizons)]
        yield from _table(head, rows, _PREDICTION)
        yield f"(horizons with {_FEW} are left out)"

    def _collapse(self) -> Iterator[str]:
        advice = False
        for label, model in self.models.items():
            collapse = geometry.collapsed(model.collapse)
            advice = advice or collapse
            warning = "Warning: " if collapse else ""
            colon = ":" if model.collapse else ""
            yield f"{warning}{label} shows {collapse_words(collapse, bool(model.collapse))}{colon}"
            for sign in model.collapse:
                yield f"  {sign.text}"
        if advice:
            yield ADVICE


def _row(columns: _Columns, *records: Any) -> list[str]:
    """A cell for each column, with the values of all records."""
    cells = []
    for name, form, _ in columns.values():
        cells.append(", ".join(written(getattr(record, name), form) for record in records))
    return cells


def _table(head: list[str], rows: list[list[str]], columns: _Columns) -> list[str]:
    """An empty line, a table, and a legend of its columns."""
    meanings = [f"{name}: {meaning}" for name, (*_, meaning) in columns.items()]
    return ["", *text_table(head, rows), f"  {'; '.join(meanings)}"]


def compare(states: Mapping[str, States], horizon: int = 5) -> GeometryComparison:
    """Measure every layer of every model.

    Args:
        states: label of a model in tables and figures -> its states.
        horizon: longest horizon of `prediction_errors`, for states with walks.

    Raises:
        DataError: the models' states belong to different rows.
    """
    check_alike(states)
    first = next(iter(states.values()))
    shown = FINAL if FINAL in first.layers else max(first.layers)
    models = {}
    for label, of_model in states.items():
        layers = dict[int, GeometryNumbers]()
        for layer in of_model.layers:
            layers[layer] = geometry.measure_states(*of_model.layer(layer))
        prediction = None if of_model.walks is None else prediction_errors(of_model.walks, horizon)
        signs = geometry.collapse_signs(layers[shown])
        models[label] = ModelGeometry(of_model.model, layers, signs, prediction)
    return GeometryComparison(first.file, len(first.rows), shown, models)
