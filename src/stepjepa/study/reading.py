"""From a study's YAML file to a `Study`, every value checked and every message with file and line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any, Literal

from stepjepa.config.values import nearest
from stepjepa.data.synthetic import ArithmeticConfig
from stepjepa.errors import ConfigError
from stepjepa.evaluation.metrics import METRICS, MODEL_METRICS, make_metric
from stepjepa.objectives.base import OBJECTIVES
from stepjepa.study.options import StudyOptions
from stepjepa.study.scoring import GEOMETRY
from stepjepa.study.spec import SAME_FLOP, SPLITS, Arm, Block, Data, Evaluation, MetricSpec, Study, file_word
from stepjepa.study.train_options import DEFAULTS, config_of, has_effect, read_training, read_views
from stepjepa.study.tree import Node, check_keys, field_values, listed, mapping, merged, open_study, set_value, typed
from stepjepa.training.config import JEPAConfig

ROWS = {"train_rows": 4000, "select_rows": 200, "test_rows": 300, "seed": 0}
_NAME = re.compile(r"[A-Za-z0-9][\w.,=-]{0,99}")
_DATA_EXAMPLE = "data: {train_file: train.jsonl, select_file: valid.jsonl, test_file: test.jsonl}, or data: builtin"
_STUDY_KEYS = [f.name for f in fields(Study) if f.name != "notes"]


@dataclass(frozen=True)
class _BlockValues:
    """What a block says by plain values."""

    seeds: list[int] = field(default_factory=list)
    baseline: str = OBJECTIVES[0]
    controls: list[Literal["shuffled", "random"]] = field(default_factory=list)
    equal_compute: bool = False


@dataclass(frozen=True)
class _DataFiles:
    train_file: list[str] = field(default_factory=list)
    train_split: str = ""
    select_file: str = ""
    select_split: str = ""
    test_file: str = ""
    test_split: str = ""


@dataclass(frozen=True)
class _Select:
    metric: str = ""
    rule: Literal["lowest", "highest"] | None = None


_BLOCK_KEYS = ["base", "arms", "grid", "tune", "data", "metrics", "select", "evaluate"]
_BLOCK_KEYS += [f.name for f in fields(_BlockValues)]


def read_options(options: StudyOptions) -> Study:
    """The study that the options of the command name, with what they change.

    Raises:
        ConfigError: it cannot be used.
    """
    name, tree = open_study(str(options.file))
    replaced = {"jobs": options.jobs, "executor": options.executor, "seeds": options.seeds}
    assignments = [f"{key}={value}" for key, value in replaced.items() if value is not None]
    for assignment in [*assignments, *(options.overrides or [])]:
        tree = set_value(tree, assignment, options.mini)
    return read_study(tree, name, options.mini, output_dir=options.output_dir)


def read_study(root: Node, name: str, mini: bool = False, output_dir: str | None = None) -> Study:
    """The study that a tree describes.

    Args:
        root: of the file, overrides set.
        name: of the study, for its title and folder where the file gives none.
        mini: put the section ``mini`` on top, in place of the blocks.
        output_dir: instead of the file's.

    Raises:
        ConfigError: anything that cannot be understood or used.
    """
    tree = dict(mapping(root, "study"))
    check_keys(tree, [*_STUDY_KEYS, *_BLOCK_KEYS, "mini"], "study")
    small = tree.pop("mini", None)
    if mini:
        if small is None:
            raise ConfigError(f"{root.where}: --mini: this study has no section 'mini'")
        tree.pop("blocks", None)
        tree = _on_top(Node(tree, root.where), Node(mapping(small, "mini"), small.where)).given
        check_keys(tree, [*_STUDY_KEYS, *_BLOCK_KEYS], "mini")
    shared = Node({key: node for key, node in tree.items() if key in _BLOCK_KEYS}, root.where)
    blocks, notes = [], list[str]()
    for part, own in (mapping(tree.get("blocks"), "blocks") or {"": Node({}, root.where)}).items():
        if part:
            _check_name(part, own.where)
        section = mapping(own, f"block {part}")
        check_keys(section, _BLOCK_KEYS, f"block {part}")
        block, said = _block(part, _on_top(shared, Node(section, own.where)))
        blocks.append(block)
        notes += said
    values = field_values(Study, {key: node for key, node in tree.items() if key in _STUDY_KEYS and key != "blocks"})
    values.setdefault("title", name)
    values.setdefault("output_dir", Path(f"runs/{name}{'-mini' if mini else ''}"))
    values.setdefault("jobs", 100 if values.get("executor") == "slurm" else 1)  # a queue holds many jobs at no cost
    if not 0 < values.get("alpha", 0.05) < 1:
        raise ConfigError(f"{tree['alpha'].where}: alpha is {values['alpha']}; it must be between 0 and 1")
    if output_dir:
        values["output_dir"] = Path(output_dir)
    return Study(**values, blocks=tuple(blocks), notes=tuple(dict.fromkeys(notes)))


def _on_top(under: Node, over: Node) -> Node:
    """`merged`, but data are replaced completely: files from two sections make no splits."""
    rest = {key: node for key, node in under.given.items() if key != "data" or key not in over.given}
    return merged(Node(rest, under.where), over)


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: the name {name!r}: use letters, digits and _ . , = - (it becomes a folder's name)")


def _block(name: str, node: Node) -> tuple[Block, list[str]]:
    """A block, and notes on it."""
    tree = mapping(node, "study")
    values = _BlockValues(**field_values(_BlockValues, tree))
    seeds, controls = values.seeds, [*dict.fromkeys(values.controls)]
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        where = tree["seeds"].where if "seeds" in tree else node.where
        raise ConfigError(f"{where}: seeds: expected different whole numbers from 0 on, as in seeds: [1, 2, 3]")
    base = {**DEFAULTS, **read_training(mapping(tree.get("base"), "base"))}
    variants = [*controls, SAME_FLOP] if values.equal_compute else controls
    arms, notes = dict[str, Arm](), list[str]()
    for where, arm_name, section in _named_arms(tree, node.where):
        if arm_name in arms:
            raise ConfigError(f"{where}: two arms are named {arm_name!r}")
        arms[arm_name], said = _arm(arm_name, section, base, tree.get("tune"), variants, where)
        notes += said
    if values.baseline not in arms:
        where = tree["baseline"].where if "baseline" in tree else node.where
        raise ConfigError(f"{where}: the baseline {values.baseline!r} is no arm; there are: {', '.join(arms)}")
    for arm in arms.values():
        if arm.control_arm is not None and (arm.control_arm not in arms or arm.control_arm == arm.name):
            raise ConfigError(f"{node.where}: control_arm of {arm.name} is {arm.control_arm!r}, which is no other arm")
    data = _data(tree.get("data"), node.where)
    if "select" not in data.files and data.builtin is None and any(arm.tuned for arm in arms.values()):
        raise ConfigError(
            f"{tree['data'].where}: tune needs select_file, a validation file, under data: what is tuned on the test file "
            "is no result"
        )
    metrics = _metrics(tree.get("metrics"), data)
    evaluation = field_values(Evaluation, mapping(tree.get("evaluate"), "evaluate"), "evaluate")
    block = Block(
        name,
        base,
        tuple(arms.values()),
        values.baseline,
        tuple(seeds),
        data,
        metrics,
        _select(tree.get("select"), metrics),
        Evaluation(**evaluation),
    )
    return block, notes


def _named_arms(tree: Mapping[str, Node], where: str) -> Iterator[tuple[str, str, Mapping[str, Node]]]:
    """(where, name, overrides) of every arm, grids expanded."""
    arms = mapping(tree.get("arms"), "arms")
    given = [(node.where, name, mapping(node, f"arm {name}")) for name, node in arms.items()]
    if "grid" in tree:
        given.append((tree["grid"].where, "", {"grid": tree["grid"]}))
    if not given:
        raise ConfigError(f"{where}: there are no arms; give arms: with a name and the overrides of each")
    for place, name, section in given:
        own = {key: node for key, node in section.items() if key != "grid"}
        lists = {key: listed(node, f"grid {key}") for key, node in mapping(section.get("grid"), "grid").items()}
        for choice in product(*lists.values()):
            cell = dict(zip(lists, choice, strict=True))
            label = ",".join(
                [*([name] if name else []), *(f"{key}={file_word(typed(node))}" for key, node in cell.items())]
            )
            _check_name(label, place)
            yield place, label, {**own, **cell}


def _arm(
    name: str,
    section: Mapping[str, Node],
    base: Mapping[str, Any],
    shared_tune: Node | None,
    wanted: Sequence[str],
    where: str,
) -> tuple[Arm, list[str]]:
    """An arm, and notes on it."""
    own = dict(section)
    tune, control_arm = own.pop("tune", None), own.pop("control_arm", None)
    settings = read_training(own)
    values = {**base, **settings}
    try:
        config = config_of(values)
    except ConfigError as error:
        raise ConfigError(f"{where}: arm {name}: {error}") from None
    lists = {**mapping(shared_tune, "tune"), **mapping(tune, "tune")}
    cells = _cells(lists, values, config, f"arm {name}")
    variants, notes = list[str](), list[str]()
    for variant in wanted if config.uses_pairs else ():
        try:
            config_of({**values, **({SAME_FLOP: True} if variant == SAME_FLOP else {"control": variant})})
            variants.append(variant)
        except ConfigError as error:
            notes.append(f"arm {name} is run without {variant}: {error}")
    notes += [f"arm {name}: {key} has no effect" for key in settings if not has_effect(key, config)]
    control = None if control_arm is None else str(typed(control_arm))
    return Arm(name, settings, cells, config.uses_pairs, tuple(variants), control), notes


def _cells(
    lists: Mapping[str, Node], values: Mapping[str, Any], config: JEPAConfig, what: str
) -> tuple[dict[str, Any], ...]:
    """All combinations of the values to be tuned, without those that the arm does not read (lbd of `regular`)."""
    choices = []
    for key, node in lists.items():
        read = [read_training({key: item}) for item in listed(node, f"tune {key}")]
        if all(has_effect(name, config_of({**values, **choice})) for choice in read for name in choice):
            choices.append(read)
    cells: list[dict[str, Any]] = []
    for combination in product(*choices):
        cell = {name: value for part in combination for name, value in part.items()}
        where = f"{next(iter(lists.values())).where}: tune, {what}" if lists else what
        try:
            pairs = config_of({**values, **cell}).uses_pairs
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        if pairs != config.uses_pairs:
            raise ConfigError(f"{where}: with {cell} it is no JEPA arm any more, or becomes one")
        if cell not in cells:
            cells.append(cell)
    return tuple(cells)


def _data(node: Node | None, where: str) -> Data:
    """The splits."""
    if node is None or node.given is None:
        raise ConfigError(f"{where}: there is no data; give {_DATA_EXAMPLE}")
    section = {"builtin": Node(None, node.where)} if node.given == "builtin" else mapping(node, "data")
    if "builtin" in section:
        return Data(builtin=_builtin(section, node.where))
    values = field_values(_DataFiles, section, "data")
    for key in ("train_file", "test_file"):
        if not values.get(key):
            raise ConfigError(f"{node.where}: data: {key} is missing; give {_DATA_EXAMPLE}")
    files = {
        "train": tuple(values["train_file"]),
        "select": (values.get("select_file"),),
        "test": (values["test_file"],),
    }
    splits = {split: values[f"{split}_split"] for split in SPLITS if values.get(f"{split}_split")}
    same = [split for split in ("train", "select") if values["test_file"] in files[split]]
    if same and not splits:
        raise ConfigError(f"{node.where}: data: test_file and {same[0]}_file are the same file")
    return Data(files={split: names for split, names in files.items() if names[0]}, splits=splits)


def _builtin(section: Mapping[str, Node], where: str) -> dict[str, Any]:
    """Numbers of rows, the seed, and fields of `ArithmeticConfig`."""
    if len(section) > 1:
        raise ConfigError(f"{where}: data: builtin is given alone, without files")
    options = mapping(section["builtin"], "builtin")
    check_keys(options, [*ROWS, *(f.name for f in fields(ArithmeticConfig))], "data")
    values = {**ROWS, **{key: typed(child) for key, child in options.items()}}
    for key in ROWS:
        if type(values[key]) is not int or values[key] < (0 if key == "seed" else 1):
            raise ConfigError(f"{where}: data: {key} is {values[key]!r}; expected a whole number")
    try:
        ArithmeticConfig(**{key: value for key, value in values.items() if key not in ROWS})
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: data: {error}") from None
    return values


def _metrics(node: Node | None, data: Data) -> tuple[MetricSpec, ...]:
    """The metrics: names, or ``name: {option: value}``; the verdicts begin with the first."""
    if node is None or node.given is None:
        names = ("answer_nll", "gsm8k") if data.builtin is not None else ("answer_nll",)
        return tuple(_metric(name, {}, "") for name in names)
    found: dict[str, MetricSpec] = {}
    for item in listed(node, "metrics"):
        name, options = item.given, dict[str, Node]()
        if isinstance(name, dict) and len(name) == 1:
            (name, child), *_ = name.items()
            options = mapping(child, f"metric {name}")
        if not isinstance(name, str):
            raise ConfigError(f"{item.where}: metrics: expected names such as [answer_nll, exact], got {typed(item)}")
        if name in found:
            raise ConfigError(f"{item.where}: metrics: {name} is given twice")
        found[name] = _metric(name, options, item.where)
    return tuple(found.values())


def _metric(name: str, options: Mapping[str, Node], where: str) -> MetricSpec:
    where = f"{where}: metrics: {name}"
    values = {key: typed(node) for key, node in options.items()}
    usual = GEOMETRY[name].higher_is_better if name in GEOMETRY else name not in MODEL_METRICS
    higher = values.pop("higher_is_better", usual)
    if type(higher) is not bool:
        raise ConfigError(f"{where}: higher_is_better: expected true or false, got {higher!r}")
    near = nearest(name, [*METRICS, *MODEL_METRICS, *GEOMETRY])
    if name in GEOMETRY:
        return MetricSpec(name, read_views({key: options[key] for key in values}, where), higher)
    if name in MODEL_METRICS and values:
        raise ConfigError(f"{where} has no options")
    if name not in METRICS and ":" not in name and near in GEOMETRY:
        raise ConfigError(f"{where}: unknown metric {name!r}; did you mean {near!r}?")
    try:
        if name not in MODEL_METRICS:
            make_metric(name, **values).close()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return MetricSpec(name, values, higher)


def _select(node: Node | None, metrics: Sequence[MetricSpec]) -> tuple[str, bool]:
    """The metric that chooses, and whether its highest value wins."""
    if node is None or node.given is None:
        return metrics[0].name, metrics[0].higher_is_better
    section = mapping(node, "select") if isinstance(node.given, dict) else {"metric": node}
    select = _Select(**field_values(_Select, section, "select"))
    name = select.metric or metrics[0].name
    metric = next((metric for metric in metrics if metric.name == name), None)
    if metric is None:
        known = ", ".join(metric.name for metric in metrics)
        raise ConfigError(f"{node.where}: select: {name!r} is none of the study's metrics ({known})")
    return name, metric.higher_is_better if select.rule is None else select.rule == "highest"
