"""The numbers of several models from their saved states: by layer, by step, and the signs of collapse.

States are read a layer at a time, so that what is held at once does not grow with the layers.

Shapes: L layers, N pairs, D width.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepjepa.analysis.collapse import CollapseSign, collapse_signs
from stepjepa.analysis.geometry import PairNumbers
from stepjepa.analysis.linear import LinearMap
from stepjepa.analysis.numbers import MIN_ROWS, GeometryNumbers, ViewNumbers, measure_states
from stepjepa.analysis.states import FINAL, States, load_states, saved_layers
from stepjepa.errors import ConfigError, DataError


@dataclass(frozen=True)
class Saved:
    """States on disk.

    Attributes:
        label: what the model is called in tables and figures.
        path: of the file that `save_states` wrote.
    """

    label: str
    path: Path


@dataclass(frozen=True)
class ModelNumbers:
    """What was measured of one model.

    Attributes:
        label: what it is called in tables and figures.
        model: its name or folder.
        layers: layer -> numbers of all pairs.
        steps: step -> numbers of the pairs with that target step, in the layer that is shown; only steps with `MIN_ROWS`
            pairs or more, and none where views are no steps.
        signs: of collapse, in the layer that is shown.
    """

    label: str
    model: str
    layers: dict[int, GeometryNumbers]
    steps: dict[int, GeometryNumbers]
    signs: tuple[CollapseSign, ...]


@dataclass(frozen=True)
class Comparison:
    """Several models on the same pairs.

    Attributes:
        file: of the rows.
        n: pairs.
        layer: that is shown in tables, and in figures without layers: the last one.
        map_layers: those with a linear map and a CKA.
        base: label of the model that the others were trained from, None if there is none.
        models: in their order.
    """

    file: str
    n: int
    layer: int
    map_layers: tuple[int, ...]
    base: str | None
    models: tuple[ModelNumbers, ...]


def check_saved(saved: Sequence[Saved], base: str | None = None) -> list[States]:
    """The saved files without their layers, if they fit together.

    Args:
        base: label of the base model; the others must be of its width and have no layer that it lacks.

    Raises:
        DataError: a file is damaged; pairs of other rows, steps or files than the first one's; another width than the base
            model's, or a layer that it lacks.
    """
    heads = [load_states(one.path, layers=[]) for one in saved]
    for one, head in zip(saved[1:], heads[1:], strict=True):
        same_pairs(heads[0], head, (saved[0].label, one.label))
    origin = next((i for i, one in enumerate(saved) if one.label == base), None)
    if origin is None:
        return heads
    layers = saved_layers(saved[origin].path)
    for one, head in zip(saved, heads, strict=True):
        check_base(
            (one.label, head.source.shape[2], saved_layers(one.path)),
            (str(base), heads[origin].source.shape[2], layers),
        )
    return heads


def check_base(model: tuple[str, int, Sequence[int]], base: tuple[str, int, Sequence[int]]) -> None:
    """Refuse a base model of another shape.

    Args:
        model, base: label, width and layers.

    Raises:
        DataError: another width, or a layer that the base has not.
    """
    advice = "only models that were trained from it can be held against it; leave --base_model out"
    if model[1] != base[1]:
        raise DataError(
            f"states of {model[0]} are {model[1]} wide, those of the base model {base[0]} {base[1]}: {advice}"
        )
    missing = [layer for layer in model[2] if layer not in base[2]]
    if missing:
        raise DataError(f"{model[0]} has states of layer {missing[0]}, the base model {base[0]} has not: {advice}")


def same_pairs(first: Any, second: Any, labels: tuple[str, str]) -> None:
    """Refuse states (or pairs) of different rows.

    Raises:
        DataError: files, rows or steps differ; the message names both models.
    """
    if first.file != second.file:
        raise DataError(
            f"states of {labels[0]} are of {first.file}, those of {labels[1]} of {second.file}; compare models on one file"
        )
    steps_a, steps_b = (np.zeros(0, np.int64) if one.steps is None else one.steps for one in (first, second))
    if not (np.array_equal(first.rows, second.rows) and np.array_equal(steps_a, steps_b)):
        raise DataError(
            f"states of {labels[0]} are of {len(first.rows)} pairs, those of {labels[1]} of {len(second.rows)}, and not of "
            "the same rows and steps; where tokenizers or positions differ, change --max_length until every row fits"
        )


def shown_layer(saved: Sequence[Saved]) -> int:
    """-1, behind the final norm, where all have it; else the last layer that all have.

    Raises:
        DataError: there is none.
    """
    common = set.intersection(*(set(saved_layers(one.path)) for one in saved))
    if not common:
        raise DataError(f"states of {', '.join(one.label for one in saved)} have no layer in common")
    return FINAL if FINAL in common else max(common)


def check_map_layers(wanted: Sequence[int], there: Sequence[int], label: str) -> None:
    """Refuse layers of which a model has no states.

    Raises:
        ConfigError: there is one.
    """
    for number in wanted:
        if number not in there:
            raise ConfigError(
                f"--map_layers {number}: {label} has no states of this layer; it has {', '.join(map(str, there))}"
            )


def compare(
    saved: Sequence[Saved],
    base: str | None = None,
    map_layers: Sequence[int] | None = None,
    advance: Callable[[str], None] = lambda label: None,
) -> Comparison:
    """Measure every layer of every model.

    Args:
        base: label of the one among `saved` that the others were trained from.
        map_layers: layers at which the linear map and the CKA are computed. Default: the one that is shown.
        advance: told the model's label after each layer.

    Raises:
        DataError: see `check_saved` and `shown_layer`; states that are not finite.
        ConfigError: a model has no states of a layer of `map_layers`.
    """
    heads, layer = check_saved(saved, base), shown_layer(saved)
    maps = tuple(dict.fromkeys([layer] if map_layers is None else map_layers))
    for one in saved:
        check_map_layers(maps, saved_layers(one.path), one.label)
    origin = next((one for one in saved if one.label == base), None)
    models = []
    for one, head in zip(saved, heads, strict=True):
        layers, steps, signs = dict[int, GeometryNumbers](), dict[int, GeometryNumbers](), list[CollapseSign]()
        for number in saved_layers(one.path):
            try:
                source, target = load_states(one.path, [number]).layer(number)
                against = load_states(origin.path, [number]).layer(number) if origin and origin is not one else None
                layers[number] = measure_states(source, target, against, number in maps)
                if number == layer:
                    steps, signs = _by_step(source, target, head.steps), collapse_signs(layers[number])
            except DataError as error:
                raise DataError(f"{one.label}, layer {number}: {error}") from None
            advance(one.label)
        models.append(ModelNumbers(one.label, head.model, layers, steps, tuple(signs)))
    return Comparison(heads[0].file, len(heads[0].rows), layer, maps, origin.label if origin else None, tuple(models))


def comparison_record(comparison: Comparison) -> dict[str, Any]:
    """All numbers as one object of JSON, models by their labels, layers and steps by their numbers."""
    models = {
        one.label: {
            "model": one.model,
            "layers": {str(layer): asdict(numbers) for layer, numbers in one.layers.items()},
            "steps": {str(step): asdict(numbers) for step, numbers in one.steps.items()},
            "collapse": [asdict(sign) for sign in one.signs],
        }
        for one in comparison.models
    }
    about = {name: getattr(comparison, name) for name in ("file", "n", "layer", "map_layers", "base")}
    return _plain({**about, "models": models})


def comparison_csv(comparison: Comparison) -> str:
    """All numbers as a table: a line for each model and layer, then one for each model and step (of the layer shown)."""
    text = io.StringIO()
    names = ["model", "layer", "step", *_columns(GeometryNumbers)]
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    for one in comparison.models:
        lines = [(layer, "", numbers) for layer, numbers in one.layers.items()]
        for layer, step, numbers in [*lines, *((comparison.layer, s, numbers) for s, numbers in one.steps.items())]:
            cells = {name: "" if value is None else value for name, value in _flat(_plain(asdict(numbers)))}
            known = {name: value for name, value in cells.items() if name in names}
            writer.writerow({"model": one.label, "layer": layer, "step": step, **known})
    return text.getvalue()


def _by_step(source: np.ndarray, target: np.ndarray, steps: np.ndarray | None) -> dict[int, GeometryNumbers]:
    found = {}
    for step, count in zip(*np.unique(steps if steps is not None else [], return_counts=True), strict=True):
        if count >= MIN_ROWS:
            there = steps == step
            found[int(step)] = measure_states(source[there], target[there], maps=False)
    return found


def _columns(kind: Any, prefix: str = "") -> Iterator[str]:
    """Names of a dataclass's numbers, those of the dataclasses in it behind their field's name."""
    inside = {"pairs": PairNumbers, "source": ViewNumbers, "target": ViewNumbers, "linear_map": LinearMap}
    for field in fields(kind):
        if field.name in inside and not prefix:
            yield from _columns(inside[field.name], f"{field.name}_")
        else:
            yield prefix + field.name


def _flat(record: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}_")
        else:
            yield prefix + name, value


def _plain(value: Any) -> Any:
    """Without what JSON has not: tuples, NumPy numbers, and numbers that are not finite, which become null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    assert not is_dataclass(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
