"""Data splits, metrics, selection and evaluation of a study file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from stepjepa.config.values import nearest
from stepjepa.data.synthetic import ArithmeticConfig
from stepjepa.errors import ConfigError
from stepjepa.evaluation.metrics import METRICS, MODEL_METRICS, make_metric
from stepjepa.study.geometry import GEOMETRY, read_views
from stepjepa.study.spec import Data, Evaluation, MetricSpec
from stepjepa.study.tree import Node, listed, mapping, shown, typed, written

BUILTIN = "builtin"
ROWS = {"train_rows": 4000, "select_rows": 200, "test_rows": 300, "seed": 0}
_FILES = ("train_file", "train_split", "select_file", "select_split", "test_file", "test_split")
_EXAMPLE = "data: {train_file: train.jsonl, select_file: valid.jsonl, test_file: test.jsonl}, or data: builtin"


def read_data(node: Node | None, where: str) -> Data:
    """The splits.

    Raises:
        ConfigError: none are given, or they cannot be understood.
    """
    if node is None or node.given is None:
        raise ConfigError(f"{where}: there is no data; give {_EXAMPLE}")
    if node.given == BUILTIN:
        return Data(builtin=dict(ROWS))
    if not node.is_mapping:
        raise ConfigError(f"{node.where}: data: expected {_EXAMPLE}; got {shown(node)}")
    if BUILTIN in node.given:
        return Data(builtin=_builtin(node))
    known = [*_FILES, BUILTIN]
    for key, child in node.given.items():
        if key not in known:
            raise ConfigError(f"{child.where}: data: unknown key {key!r}; did you mean {nearest(key, known)!r}?")
    values = {key: typed(child) for key, child in node.given.items()}
    train = values.get("train_file") or []
    train = [train] if isinstance(train, str) else train
    for key in ("train_file", "test_file"):
        if not values.get(key):
            raise ConfigError(f"{node.where}: data: {key} is missing")
    for key, value in values.items():
        several = key == "train_file" and isinstance(value, list)
        if not all(isinstance(item, str) for item in (value if several else [value])):
            raise ConfigError(f"{node.given[key].where}: data: {key}: expected text, got {value!r}")
    splits = {key.removesuffix("_split"): value for key, value in values.items() if key.endswith("_split")}
    same = [
        key
        for key in ("train_file", "select_file")
        if values["test_file"] in (values.get(key), *(train if key == "train_file" else ()))
    ]
    if same and not splits:
        raise ConfigError(f"{node.where}: data: test_file and {same[0]} are the same file")
    return Data(None, tuple(train), values.get("select_file"), values["test_file"], splits)


def _builtin(node: Node) -> dict[str, Any]:
    """Numbers of rows, the seed, and fields of `ArithmeticConfig`."""
    if len(node.given) > 1:
        raise ConfigError(f"{node.where}: data: builtin stands alone, without files")
    options = mapping(node.given[BUILTIN], BUILTIN)
    known = [*ROWS, *(f.name for f in fields(ArithmeticConfig))]
    for key, child in options.items():
        if key not in known:
            raise ConfigError(f"{child.where}: data: unknown key {key!r}; did you mean {nearest(key, known)!r}?")
    values = {**ROWS, **{key: typed(child) for key, child in options.items()}}
    for key in ROWS:
        if type(values[key]) is not int or values[key] < (0 if key == "seed" else 1):
            raise ConfigError(f"{node.where}: data: {key} is {values[key]!r}; expected a whole number")
    try:
        ArithmeticConfig(**{key: value for key, value in values.items() if key not in ROWS})
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{node.where}: data: {error}") from None
    return values


def read_metrics(node: Node | None, data: Data) -> tuple[MetricSpec, ...]:
    """The metrics: names, or ``name: {option: value}``; the first is the one that the verdicts begin with.

    Raises:
        ConfigError: an unknown metric or option, or a package that is not installed.
    """
    if node is None or node.given is None:
        names = ("answer_nll", "gsm8k") if data.builtin is not None else ("answer_nll",)
        return tuple(_metric(name, {}, "") for name in names)
    found: list[MetricSpec] = []
    for item in listed(node, "metrics"):
        options: dict[str, Any] = {}
        name = item.given
        if item.is_mapping and len(item.given) == 1:
            (name, child), *_ = item.given.items()
            options = {
                key: (written if name in GEOMETRY and key != "higher_is_better" else typed)(value)
                for key, value in mapping(child, f"metric {name}").items()
            }
        if not isinstance(name, str):
            raise ConfigError(f"{item.where}: metrics: expected names such as [answer_nll, exact], got {shown(item)}")
        if name in [metric.name for metric in found]:
            raise ConfigError(f"{item.where}: metrics: {name} stands here twice")
        found.append(_metric(name, options, item.where))
    return tuple(found)


def _metric(name: str, options: dict[str, Any], where: str) -> MetricSpec:
    usual = GEOMETRY[name].higher_is_better if name in GEOMETRY else name not in MODEL_METRICS
    higher = options.pop("higher_is_better", usual)
    if type(higher) is not bool:
        raise ConfigError(f"{where}: metrics: higher_is_better of {name}: expected true or false, got {higher!r}")
    if name in MODEL_METRICS:
        if options:
            raise ConfigError(f"{where}: metrics: {name} has no options")
        return MetricSpec(name, {}, higher)
    if name in GEOMETRY:
        try:
            return MetricSpec(name, read_views(name, options), higher)
        except ConfigError as error:
            raise ConfigError(f"{where}: metrics: {error}") from None
    near = nearest(name, [*METRICS, *MODEL_METRICS, *GEOMETRY])
    if name not in METRICS and ":" not in name and near in GEOMETRY:
        raise ConfigError(f"{where}: metrics: unknown metric {name!r}; did you mean {near!r}?")
    try:
        make_metric(name, **options).close()
    except ConfigError as error:
        raise ConfigError(f"{where}: metrics: {error}") from None
    return MetricSpec(name, options, higher)


def read_select(node: Node | None, metrics: Sequence[MetricSpec]) -> tuple[str, bool]:
    """The metric that chooses, and whether its highest value wins.

    Raises:
        ConfigError: it is none of the study's metrics, or an unknown rule.
    """
    if node is None or node.given is None:
        return metrics[0].name, metrics[0].higher_is_better
    options = mapping(node, "select") if node.is_mapping else {"metric": node}
    for key, child in options.items():
        if key not in ("metric", "rule"):
            raise ConfigError(f"{child.where}: select: unknown key {key!r}; known: metric, rule")
    name = options["metric"].given if "metric" in options else metrics[0].name
    metric = next((metric for metric in metrics if metric.name == name), None)
    if metric is None:
        known = ", ".join(metric.name for metric in metrics)
        raise ConfigError(f"{node.where}: select: {name!r} is none of the study's metrics ({known})")
    rule = options["rule"].given if "rule" in options else None
    if rule not in (None, "lowest", "highest"):
        raise ConfigError(f"{options['rule'].where}: select: rule is {rule!r}; known: lowest, highest")
    return metric.name, metric.higher_is_better if rule is None else rule == "highest"


def read_evaluation(node: Node | None) -> Evaluation:
    """How models are scored.

    Raises:
        ConfigError: an unknown key or no whole number.
    """
    if node is None:
        return Evaluation()
    known = [f.name for f in fields(Evaluation)]
    values = {}
    for key, child in mapping(node, "evaluate").items():
        if key not in known:
            raise ConfigError(f"{child.where}: evaluate: unknown key {key!r}; did you mean {nearest(key, known)!r}?")
        values[key] = typed(child)
        if key == "max_examples" and values[key] is None:
            continue
        if type(values[key]) is not int or values[key] < 1:
            raise ConfigError(
                f"{child.where}: evaluate: {key}: expected a whole number of 1 or more, got {values[key]!r}"
            )
    return Evaluation(**values)
