"""Reads a study's YAML file, or a recipe, into a `Study`. Every value is checked; every message names the file and line.

Training options have the names, spellings and checks of the command line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

from stepjepa.config.option import Names, Values, options_of
from stepjepa.config.parser import Setting, StrictParser, build, carried, known_values, merged
from stepjepa.config.spellings import published
from stepjepa.config.values import nearest
from stepjepa.data.steps import LISTED, make_splitter
from stepjepa.data.tasks import make_task, task_class
from stepjepa.errors import ConfigError
from stepjepa.evaluation.metrics.base import METRICS, MODEL_METRICS, make_metric
from stepjepa.objectives.base import Objective, built_in, objective_of
from stepjepa.objectives.regular import Regular
from stepjepa.study.score import GEOMETRY
from stepjepa.study.spec import (
    SAME_FLOP,
    SPLITS,
    Arm,
    Block,
    Data,
    MetricSpec,
    ProblemRows,
    Scoring,
    Study,
    StudyOptions,
    cell_name,
    evaluates_on_the_way,
    varied,
)
from stepjepa.study.tree import Node, check_keys, field_values, open_study, overlaid, set_value
from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import JEPAOptions, RunOptions, without_effect

_NAME = Names(RunOptions, JEPAConfig, StudyOptions)
# Options that a study's runs have unless the file sets them.
DEFAULTS = {_NAME.track_flop: True, _NAME.disable_tqdm: True, _NAME.save_total_limit: 1}
# Options that the study sets itself.
_SET_BY_STUDY = (
    _NAME.output_dir,
    _NAME.overwrite_output_dir,
    _NAME.resume_from_checkpoint,
    _NAME.train_file,
    _NAME.dataset_split,
    _NAME.seed,
    _NAME.control,
    _NAME.same_flop,
)
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][\w.,=-]{0,99}")


@dataclass(frozen=True)
class _BlockValues:
    """The plain values of a block."""

    seeds: list[int] = field(default_factory=list)
    tune_seeds: list[int] = field(default_factory=list)
    baseline: str = Regular.name
    controls: list[Literal["shuffled", "random"]] = field(default_factory=list)
    equal_compute: bool = False
    select: str = ""


@dataclass(frozen=True)
class _DataFiles:
    train_file: list[str] = field(default_factory=list)
    train_split: str = ""
    select_file: str = ""
    select_split: str = ""
    test_file: str = ""
    test_split: str = ""


_FILE = Names(_DataFiles)
_DATA_EXAMPLE = (
    f"data: {{{_FILE.train_file}: train.jsonl, {_FILE.select_file}: valid.jsonl, {_FILE.test_file}: test.jsonl}}, or "
    "data: builtin"
)
_STUDY_KEYS = [f.name for f in fields(Study) if f.name != "notes"]
_BLOCK_KEYS = ["base", "arms", "tune", "data", "metrics", "evaluate"]
_BLOCK_KEYS += [f.name for f in fields(_BlockValues)]


def read_options(options: StudyOptions) -> Study:
    """The study that the command's options name, with their overrides.

    Raises:
        ConfigError: it cannot be used.
    """
    name, tree = open_study(str(options.file))
    flags = {key: getattr(options, key) for key in (_NAME.jobs, _NAME.executor, _NAME.seeds)}
    assignments = [f"{key}={value}" for key, value in flags.items() if value is not None]
    assignments += options.overrides or []
    return read_study(tree, name, options.mini, assignments, options.output_dir)


def read_study(
    root: Node,
    name: str,
    mini: bool = False,
    assignments: Sequence[str] = (),
    output_dir: str | None = None,
) -> Study:
    """Convert the tree of a study's file.

    Args:
        root: the file's tree.
        name: default for the study's title and folder.
        mini: apply the ``mini`` section, which replaces the blocks.
        assignments: values that replace the file's and those of ``mini``, see `set_value`.
        output_dir: overrides the file's.

    Raises:
        ConfigError: a value is unknown, unusable, or in conflict with another.
    """
    tree = dict(root.mapping("study"))
    small = tree.pop("mini", None)
    if mini:
        if small is None:
            raise ConfigError(f"{root.where}: --{_NAME.mini}: this study has no section 'mini'")
        tree.pop("blocks", None)
        tree = overlaid(Node(tree, root.where), small, replaced=["data"]).mapping("mini")
    for assignment in assignments:
        tree = set_value(Node(tree, root.where), assignment).given
    check_keys(tree, [*_STUDY_KEYS, *_BLOCK_KEYS], "study")
    # Values at the top of the file are the defaults of every block.
    shared = Node({key: node for key, node in tree.items() if key in _BLOCK_KEYS}, root.where)
    parts = tree.pop("blocks", Node(None, root.where)).mapping("blocks") or {
        "": Node({}, root.where)
    }
    notes = list[str]()
    blocks = tuple(_block(part, section, shared, notes) for part, section in parts.items())

    values = field_values(Study, tree)
    values.setdefault("title", name)
    values.setdefault("output_dir", Path(f"runs/{name}{'-mini' if mini else ''}"))
    queued = values.get("executor") in ("slurm", "ray")  # waiting in a queue costs nothing
    values.setdefault("jobs", 100 if queued else 1)
    if output_dir:
        values["output_dir"] = Path(output_dir)
    return Study(**values, blocks=blocks, notes=tuple(dict.fromkeys(notes)))


def _block(name: str, section: Node, shared: Node, notes: list[str]) -> Block:
    """A block: its section on top of the shared values. Remarks for the author of the file are added to `notes`."""
    if name:
        _check_name(name, section.where)
    check_keys(section.mapping(f"block {name}"), _BLOCK_KEYS, f"block {name}")
    node = overlaid(shared, Node(section.given or {}, section.where), replaced=["data"])
    tree: dict[str, Node] = {**dict.fromkeys(_BLOCK_KEYS, Node(None, node.where)), **node.given}
    values = _BlockValues(**field_values(_BlockValues, node.given))
    _check_seeds(values, tree["seeds"].where)

    # The arms, each checked with the base that it changes.
    base = {**DEFAULTS, **read_training(tree["base"].mapping("base"))}
    variants: list[str] = [*dict.fromkeys(values.controls)]
    if values.equal_compute:
        variants.append(SAME_FLOP)
    arms = dict[str, Arm]()
    for arm_name, arm_node in tree["arms"].mapping("arms").items():
        _check_name(arm_name, arm_node.where)
        arms[arm_name] = _arm(arm_name, arm_node, base, tree["tune"], variants, notes)
    if values.baseline not in arms:
        where, known = tree["baseline"].where, ", ".join(arms)
        raise ConfigError(
            f"{where}: the baseline {values.baseline!r} is not an arm; the arms are: {known}"
        )
    for arm_name, arm in arms.items():
        control = arm.control_arm
        if control is not None and (control not in arms or control == arm_name):
            raise ConfigError(
                f"{node.where}: control_arm of {arm_name} is {control!r}, which is not another arm"
            )

    data = _data(tree["data"])
    _check_validation(data, list(arms.values()), base, tree["data"].where)
    metrics = _metrics(tree["metrics"], data)
    return Block(
        name,
        base,
        tuple(arms.values()),
        values.baseline,
        tuple(values.seeds),
        data,
        metrics,
        _select(values.select, metrics, tree["select"].where),
        Scoring(**field_values(Scoring, tree["evaluate"].mapping("evaluate"), "evaluate")),
        tuple(values.tune_seeds),
    )


def _check_seeds(values: _BlockValues, where: str) -> None:
    seeds = [*values.seeds, *values.tune_seeds]
    if not values.seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"{where}: seeds and tune_seeds: expected distinct whole numbers, 0 or greater, as in seeds: [1, 2, 3]"
        )


def _check_validation(data: Data, arms: Sequence[Arm], base: Values, where: str) -> None:
    """Refuse to tune, or to evaluate during training, without a validation split."""
    if "select" in data.files or data.builtin is not None:
        return
    if any(arm.tuned or evaluates_on_the_way({**base, **arm.settings}) for arm in arms):
        raise ConfigError(
            f"{where}: tune and {_NAME.eval_strategy} need {_FILE.select_file}, a validation file, under data "
            f"({_NAME.eval_strategy} also takes {_NAME.eval_file})"
        )


def _select(name: str, metrics: Sequence[MetricSpec], where: str) -> tuple[str, bool]:
    """The metric that chooses among cells, and whether its highest value wins."""
    by_name = {metric.name: metric for metric in metrics}
    chosen = name or metrics[0].name
    if chosen not in by_name:
        raise ConfigError(
            f"{where}: select: {chosen!r} is not one of the study's metrics ({', '.join(by_name)})"
        )
    return chosen, by_name[chosen].higher_is_better


def _check_name(name: str, where: str) -> None:
    if not _FOLDER_NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: the name {name!r}: use letters, digits and _ . , = - (it becomes a folder's name)"
        )


def _arm(
    name: str,
    node: Node,
    base: Values,
    shared_tune: Node,
    variants: Sequence[str],
    notes: list[str],
) -> Arm:
    """An arm: its overrides of the base, the values to tune, and those of `variants` that apply to it."""
    section = dict(node.mapping(f"arm {name}"))
    tune = section.pop("tune", Node(None, node.where))
    control_arm = section.pop("control_arm", Node(None, node.where))
    if "controls" in section:  # overrides those of the block
        controls = field_values(_BlockValues, {"controls": section.pop("controls")}).get(
            "controls", []
        )
        variants = [*controls, *(variant for variant in variants if variant == SAME_FLOP)]
    settings = read_training(section)
    values = {**base, **settings}
    config = config_of(values, f"{node.where}: arm {name}: ")
    cells = _cells({**shared_tune.mapping("tune"), **tune.mapping("tune")}, values, f"arm {name}")
    pairs = objective_of(config).makes_pairs
    # A variant that the arm's options rule out is left out with a note rather than an error: other arms may have it.
    possible = []
    for variant in variants if pairs else ():
        try:
            config_of({**values, **varied(variant)})
            possible.append(variant)
        except ConfigError as error:
            notes.append(f"arm {name} is run without {variant}: {error}")
    notes += [
        f"arm {name}: {key} has no effect" for key in settings if without_effect(config, [key])
    ]
    control = None if control_arm.given is None else str(control_arm.value)
    return Arm(name, settings, cells, pairs, tuple(possible), control)


def _cells(lists: Mapping[str, Node], values: Values, what: str) -> tuple[dict[str, Any], ...]:
    """All combinations of the values to tune, without options that have no effect on the arm (such as lbd of `regular`)."""
    choices = []
    for key, node in lists.items():
        options = [read_training({key: item}) for item in node.listed(f"tune {key}")]
        if not any(
            without_effect(config_of({**values, **option}), list(option)) for option in options
        ):
            choices.append(options)
    if not choices:
        return ({},)
    where = f"{next(iter(lists.values())).where}: tune, {what}"
    cells: dict[str, dict[str, Any]] = {}
    for combination in product(*choices):
        cell = {name: value for part in combination for name, value in part.items()}
        config_of({**values, **cell}, f"{where}: ")
        # The runs of a cell are stored under its name.
        name = cell_name(cell)
        if cells.setdefault(name, cell) != cell:
            raise ConfigError(
                f"{where}: two combinations have the same name, {name}; use values that differ in letters, or in six digits"
            )
    return tuple(cells.values())


# Data and metrics


def _data(node: Node) -> Data:
    if node.given is None:
        raise ConfigError(f"{node.where}: there is no data; give {_DATA_EXAMPLE}")
    section = (
        {"builtin": Node(None, node.where)} if node.given == "builtin" else node.mapping("data")
    )
    if "builtin" in section:
        return Data(builtin=_builtin(section))
    values = field_values(_DataFiles, section, "data")
    for key in (_FILE.train_file, _FILE.test_file):
        if not values.get(key):
            raise ConfigError(f"{node.where}: data: {key} is missing; give {_DATA_EXAMPLE}")
    files = {"train": tuple(values["train_file"])}
    for split in ("select", "test"):
        if values.get(f"{split}_file"):
            files[split] = (values[f"{split}_file"],)
    splits = {split: values[f"{split}_split"] for split in SPLITS if values.get(f"{split}_split")}
    for split in ("train", "select"):
        if values["test_file"] in files.get(split, ()) and not splits:
            raise ConfigError(
                f"{node.where}: data: {_FILE.test_file} and {split}_file are the same file"
            )
    return Data(files=files, splits=splits)


def _builtin(section: Mapping[str, Node]) -> dict[str, Any]:
    """All fields of `ProblemRows`, and the options of its task."""
    check_keys(section, ["builtin"], "data")
    options = section["builtin"].mapping("builtin")
    rows = ProblemRows(**field_values(ProblemRows, options))
    kind = task_class(rows.task)
    check_keys(options, [*options_of(ProblemRows), *options_of(kind)], "data")
    of_task = field_values(kind, options)
    make_task(rows.task, **of_task)
    return {**asdict(rows), **of_task}


def _metrics(node: Node, data: Data) -> tuple[MetricSpec, ...]:
    """The metrics: names, or ``name: {option: value}``. The first one comes first in the verdicts."""
    if node.given is None:
        names = ["answer_nll"]
        if data.builtin is not None:
            names.append(task_class(data.builtin["task"]).metric)
        return tuple(_metric(name, {}, "") for name in names)
    metrics: dict[str, MetricSpec] = {}
    for item in node.listed("metrics"):
        name, options = item.given, dict[str, Node]()
        if isinstance(name, dict) and len(name) == 1:
            (name, child), *_ = name.items()
            options = child.mapping(f"metric {name}")
        if not isinstance(name, str):
            raise ConfigError(
                f"{item.where}: metrics: expected names such as [answer_nll, exact], got {item.value}"
            )
        metrics[name] = _metric(name, options, f"{item.where}: metrics: {name}")
    return tuple(metrics.values())


def _metric(name: str, options: Mapping[str, Node], where: str) -> MetricSpec:
    """A metric with its options, checked, and its direction."""
    if name in GEOMETRY:
        return MetricSpec(name, _views(options, where), GEOMETRY[name])
    if name in MODEL_METRICS:
        if options:
            raise ConfigError(f"{where} has no options")
        return MetricSpec(name, {}, higher_is_better=False)
    near = nearest(name, [*METRICS, *MODEL_METRICS, *GEOMETRY])
    if name not in METRICS and near in GEOMETRY:
        raise ConfigError(f"{where}: unknown metric {name!r}; did you mean {near!r}?")
    values = {key: node.value for key, node in options.items()}
    try:
        metric = make_metric(name, **values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    metric.close()
    return MetricSpec(name, values, metric.higher_is_better)


def _views(section: Mapping[str, Node], where: str) -> dict[str, Any]:
    """The checked options that select the two views a metric compares."""
    method = options_of(JEPAOptions)
    known = ["objective", *(name for name in method if method[name].group == method["views"].group)]
    check_keys(section, known, "metrics")
    values = field_values(JEPAOptions, section)
    # Only an objective with predictors has a source view, which the predictors follow, and a target view.
    objective = built_in().get(values.get("objective", ""), Objective)
    if "objective" not in values or not objective().takes_predictors:
        raise ConfigError(
            f"{where}: name the views that the metric compares, the same for all arms, as in {{objective: llm_jepa}}"
        )
    try:
        views = JEPAOptions(**values, predictors=0)
        views.check()
        if views.step_splitter != LISTED:
            make_splitter(views.step_splitter, views.step_separator)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return values


# Options of training


@cache
def _parser() -> StrictParser:
    return StrictParser((RunOptions, JEPAConfig), aliases=published(RunOptions, JEPAConfig))


def read_training(section: Mapping[str, Node]) -> dict[str, Any]:
    """The training options that a mapping sets, converted to their types.

    Raises:
        ConfigError: an unknown key, a value of the wrong type, a secret, or an option that the study itself sets.
    """
    parser, settings = _parser(), list[Setting]()
    # An objective from a file adds options, which must be known before the others are read.
    for name in section.keys() & {known.name for known in parser.options.values() if known.brings}:
        parser.take_up(name, section[name].written)
    check_keys(section, [*parser.options, *parser.aliases])
    for name, node in section.items():
        settings += parser.settings(name, node.written, f"{node.where}: {name}")
    values = {}
    for key, setting in merged(settings).items():
        if parser.options[key].secret:
            raise ConfigError(
                f"{setting.spelling}: a study keeps its settings in files; set HF_TOKEN in the environment"
            )
        if key in _SET_BY_STUDY:
            raise ConfigError(
                f"{setting.spelling}: the study sets this option and resumes by itself; give output_dir, seeds, controls "
                f"and equal_compute at its top, files under data, and --{_NAME.overwrite_output_dir} to stepjepa study"
            )
        values[key] = setting.value.value if isinstance(setting.value, Enum) else setting.value
    return values


def config_of(values: Values, place: str = "") -> JEPAConfig:
    """The configuration of a run with these options, which are checked one by one and together.

    Raises:
        ConfigError: they cannot be used; the message begins with `place`.
    """
    # The machine that reads the study may have no accelerator, so options that require one are replaced.
    data = {"eval_file": "unused"} if evaluates_on_the_way(values) else {}
    given = {"output_dir": "unused", **values, **data, "use_cpu": True, "fp16": False, "tf32": None}
    try:
        kinds = RunOptions, JEPAConfig
        _, config = build(kinds, known_values(carried(options_of(*kinds), given), *kinds))
    except ConfigError as error:
        raise ConfigError(f"{place}{error}") from None
    return config
