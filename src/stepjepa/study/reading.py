"""From a study's YAML file to a `Study`, every value checked and every message with file and line.

Options of training have the names, spellings and checks of the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

from stepjepa.config.option import Names, options_of
from stepjepa.config.parser import StrictParser, carried, merge
from stepjepa.config.spellings import published
from stepjepa.data.steps import LISTED, make_splitter
from stepjepa.data.tasks import make_task, task_class
from stepjepa.errors import ConfigError
from stepjepa.evaluation.metrics import MODEL_METRICS, make_metric
from stepjepa.evaluation.options import HARNESS, HarnessOptions
from stepjepa.objectives.base import OBJECTIVES, Objective, built_in, objective_of
from stepjepa.study.spec import (
    SAME_FLOP,
    SPLITS,
    Arm,
    Block,
    Data,
    Evaluation,
    MetricSpec,
    ProblemRows,
    Study,
    StudyOptions,
    evaluates_on_the_way,
    file_word,
    varied,
)
from stepjepa.study.stages import GEOMETRY
from stepjepa.study.tree import Node, check_keys, field_values, merged, open_study, set_values
from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import JEPAOptions, RunOptions, without_effect

_NAME = Names(RunOptions, JEPAConfig, StudyOptions)
# What a study's runs have unless the file says otherwise.
DEFAULTS = {_NAME.track_flop: True, _NAME.disable_tqdm: True, _NAME.save_total_limit: 1}
# Options that the study sets, and where it is told to.
_SET_BY_STUDY = {
    _NAME.output_dir: f"{_NAME.output_dir} at the top of the study",
    _NAME.overwrite_output_dir: f"--{_NAME.overwrite_output_dir} to stepjepa study",
    _NAME.train_file: f"{_NAME.train_file} under data",
    _NAME.dataset_split: "train_split under data",
    _NAME.seed: "seeds at the top of the study",
    _NAME.control: "controls: [shuffled, random] at the top of the study",
    _NAME.same_flop: "equal_compute: true at the top of the study",
    _NAME.resume_from_checkpoint: "nothing: a study resumes by itself",
}
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][\w.,=-]{0,99}")


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


_FILE = Names(_DataFiles)
_DATA_EXAMPLE = (
    f"data: {{{_FILE.train_file}: train.jsonl, {_FILE.select_file}: valid.jsonl, {_FILE.test_file}: test.jsonl}}, or "
    "data: builtin"
)


@dataclass(frozen=True)
class _Select:
    metric: str = ""
    rule: Literal["lowest", "highest"] | None = None


_BLOCK_KEYS = ["base", "arms", "grid", "tune", "data", "metrics", "select", "evaluate"]
_BLOCK_KEYS += [f.name for f in fields(_BlockValues)]
_KEYS = [*(f.name for f in fields(Study) if f.name != "notes"), *_BLOCK_KEYS]


def read_options(options: StudyOptions) -> Study:
    """The study that the options of the command name, with what they change.

    Raises:
        ConfigError: it cannot be used.
    """
    name, tree = open_study(str(options.file))
    replaced = {name: getattr(options, name) for name in (_NAME.jobs, _NAME.executor, _NAME.seeds)}
    assignments = [f"{name}={value}" for name, value in replaced.items() if value is not None]
    return read_study(tree, name, options.mini, options.output_dir, [*assignments, *(options.overrides or [])])


def read_study(
    root: Node, name: str, mini: bool = False, output_dir: str | None = None, overrides: Sequence[str] = ()
) -> Study:
    """The study that a tree describes.

    Args:
        root: of the file.
        name: of the study, for its title and folder where the file gives none.
        mini: put the section ``mini`` on top, in place of the blocks.
        output_dir: instead of the file's.
        overrides: values on top of all, ``key.key=value``.

    Raises:
        ConfigError: anything that cannot be understood or used.
    """
    tree: dict[str, Node] = {**set_values(Node(root.mapping("study"), root.where), overrides).given}
    check_keys(tree, [*_KEYS, "mini"], "study")
    small = tree.pop("mini", None)
    if mini:
        if small is None:
            raise ConfigError(f"{root.where}: --{_NAME.mini}: this study has no section 'mini'")
        check_keys(small.mapping("mini"), _KEYS, "mini")
        tree.pop("blocks", None)
        over = Node(small.given or {}, small.where)
        tree = set_values(merged(Node(tree, root.where), over, replaced=["data"]), overrides, _KEYS).given
    elif ignored := [one for one in overrides if one.startswith("mini.")]:
        raise ConfigError(f"--set {ignored[0]}: the section mini is read with --{_NAME.mini} only")
    blocks = tree.pop("blocks", Node(None, root.where)).mapping("blocks") or {"": Node({}, root.where)}
    values = field_values(Study, tree)
    values.setdefault("title", name)
    values.setdefault("output_dir", Path(f"runs/{name}{'-mini' if mini else ''}"))
    queued = values.get("executor") in ("slurm", "ray")  # a queue holds many jobs at no cost
    values.setdefault("jobs", 100 if queued else 1)
    if output_dir:
        values["output_dir"] = Path(output_dir)
    shared = Node({key: node for key, node in tree.items() if key in _BLOCK_KEYS}, root.where)
    notes, found = list[str](), list[Block]()
    for part, own in blocks.items():
        check_keys(own.mapping(f"block {part}"), _BLOCK_KEYS, f"block {part}")
        whole = merged(shared, Node(own.given or {}, own.where), replaced=["data"])
        found.append(_block(part, set_values(whole, overrides, _BLOCK_KEYS), values["output_dir"], notes))
    return Study(**values, blocks=tuple(found), notes=tuple(dict.fromkeys(notes)))


def _block(name: str, node: Node, folder: Path, notes: list[str]) -> Block:
    """A block, whose keys are known, of the study in `folder`. `notes` takes what its reader should know."""
    if name:
        _check_name(name, node.where)
    tree: dict[str, Node] = {**dict.fromkeys(_BLOCK_KEYS, Node(None, node.where)), **node.given}
    values = _BlockValues(**field_values(_BlockValues, tree))
    seeds = values.seeds
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        expected = "expected different whole numbers from 0 on, as in seeds: [1, 2, 3]"
        raise ConfigError(f"{tree['seeds'].where}: seeds: {expected}")
    base = {**DEFAULTS, **read_training(tree["base"].mapping("base"))}
    variants = [*dict.fromkeys(values.controls), *([SAME_FLOP] if values.equal_compute else [])]
    arms = dict[str, Arm]()
    for where, arm_name, section in _named_arms(tree["arms"], tree["grid"]):
        if arm_name in arms:
            raise ConfigError(f"{where}: two arms are named {arm_name!r}")
        arms[arm_name] = _arm(arm_name, section, base, tree["tune"], variants, where, notes)
    if values.baseline not in arms:
        known = ", ".join(arms)
        raise ConfigError(f"{tree['baseline'].where}: the baseline {values.baseline!r} is no arm; there are: {known}")
    for arm in arms.values():
        if arm.control_arm is not None and (arm.control_arm not in arms or arm.control_arm == arm.name):
            raise ConfigError(f"{node.where}: control_arm of {arm.name} is {arm.control_arm!r}, which is no other arm")
    data = _data(tree["data"], folder)
    for arm in arms.values() if "select" not in data.files else ():
        if arm.tuned or evaluates_on_the_way({**base, **arm.settings}):
            raise ConfigError(
                f"{tree['data'].where}: the arm {arm.name} needs {_FILE.select_file}, a validation file, under data: it has "
                f"values to tune, or {_NAME.eval_strategy} without {_NAME.eval_file}"
            )
    metrics = _metrics(tree["metrics"], data)
    evaluation = Evaluation(**field_values(Evaluation, tree["evaluate"].mapping("evaluate"), "evaluate"))
    select = _select(tree["select"], metrics)
    return Block(name, base, tuple(arms.values()), values.baseline, tuple(seeds), data, metrics, select, evaluation)


def _check_name(name: str, where: str) -> None:
    if not _FOLDER_NAME.fullmatch(name):
        raise ConfigError(f"{where}: the name {name!r}: use letters, digits and _ . , = - (it becomes a folder's name)")


def _named_arms(arms: Node, grid: Node) -> Iterator[tuple[str, str, dict[str, Node]]]:
    """(where, name, overrides) of every arm, grids expanded."""
    given = [(node.where, name, node.mapping(f"arm {name}")) for name, node in arms.mapping("arms").items()]
    if grid.given is not None:
        given.append((grid.where, "", {"grid": grid}))
    if not given:
        raise ConfigError(f"{arms.where}: there are no arms; give arms: with a name and the overrides of each")
    for where, name, section in given:
        own = {key: node for key, node in section.items() if key != "grid"}
        choices = section["grid"].mapping("grid") if "grid" in section else {}
        for choice in product(*(node.listed(f"grid {key}") for key, node in choices.items())):
            cell = dict(zip(choices, choice, strict=True))
            words = [f"{key}={file_word(node.value)}" for key, node in cell.items()]
            label = ",".join([name, *words] if name else words)
            _check_name(label, where)
            yield where, label, {**own, **cell}


def _arm(
    name: str,
    section: dict[str, Node],
    base: Mapping[str, Any],
    shared_tune: Node,
    wanted: Sequence[str],
    where: str,
    notes: list[str],
) -> Arm:
    tune, control_arm = section.pop("tune", Node(None, where)), section.pop("control_arm", Node(None, where))
    settings = read_training(section)
    values = {**base, **settings}
    config = config_of(values, f"{where}: arm {name}: ")
    pairs, cells = objective_of(config).makes_pairs, list[dict[str, Any]]()
    lists = {**shared_tune.mapping("tune"), **tune.mapping("tune")}
    choices = []  # without those that the arm does not read (lbd of `regular`)
    for key, node in lists.items():
        read = [read_training({key: item}) for item in node.listed(f"tune {key}")]
        if not any(without_effect(config_of({**values, **choice}), list(choice)) for choice in read):
            choices.append(read)
    for combination in product(*choices):
        cell = {name: value for part in combination for name, value in part.items()}
        place = f"{next(iter(lists.values())).where}: tune, arm {name}: " if lists else ""
        if cell and objective_of(config_of({**values, **cell}, place)).makes_pairs != pairs:
            raise ConfigError(f"{place}with {cell} it is no JEPA arm any more, or becomes one")
        cells += [cell] if cell not in cells else []
    variants = list[str]()
    for variant in wanted if pairs else ():
        try:
            config_of({**values, **varied(variant)})
            variants.append(variant)
        except ConfigError as error:
            notes.append(f"arm {name} is run without {variant}: {error}")
    notes += [f"arm {name}: {key} has no effect" for key in settings if without_effect(config, [key])]
    control = None if control_arm.given is None else str(control_arm.value)
    return Arm(name, settings, tuple(cells), pairs, tuple(variants), control)


# Data and metrics


def _data(node: Node, folder: Path) -> Data:
    if node.given is None:
        raise ConfigError(f"{node.where}: there is no data; give {_DATA_EXAMPLE}")
    section = {"builtin": Node(None, node.where)} if node.given == "builtin" else node.mapping("data")
    if "builtin" in section:
        builtin = _builtin(section, node.where)
        options = "-".join(
            f"{key}={value}" for key, value in sorted(builtin.items())
        )  # blocks with the same share them
        own = folder / "data" / f"builtin-{re.sub(r'[^a-zA-Z0-9=_.-]', '', options)}"
        return Data({split: (str(own / f"{split}.jsonl"),) for split in SPLITS}, builtin=builtin)
    values = field_values(_DataFiles, section, "data")
    for key in (_FILE.train_file, _FILE.test_file):
        if not values.get(key):
            raise ConfigError(f"{node.where}: data: {key} is missing; give {_DATA_EXAMPLE}")
    test, select = values["test_file"], values.get("select_file")
    files = {"train": tuple(values["train_file"]), **({"select": (select,)} if select else {}), "test": (test,)}
    splits = {split: values[f"{split}_split"] for split in SPLITS if values.get(f"{split}_split")}
    same = [split for split in ("train", "select") if test in files.get(split, ())]
    if same and not splits:
        raise ConfigError(f"{node.where}: data: {_FILE.test_file} and {same[0]}_file are the same file")
    return Data(files, splits)


def _builtin(section: Mapping[str, Node], where: str) -> dict[str, Any]:
    """Fields of `ProblemRows`, all of them, and the options of its task, those of the test split under ``test``."""
    if len(section) > 1:
        raise ConfigError(f"{where}: data: builtin is given alone, without files")
    options = section["builtin"].mapping("builtin")
    rows = ProblemRows(**field_values(ProblemRows, options))
    kind = task_class(rows.task)
    check_keys(options, [*options_of(ProblemRows), *options_of(kind), "test"], "data")
    own = field_values(kind, options)
    test = field_values(kind, options["test"].mapping("test") if "test" in options else {}, "data: test")
    try:
        for values in (own, {**own, **test}):
            make_task(rows.task, **values)
    except ConfigError as error:
        raise ConfigError(f"{where}: data: {error}") from None
    return {**asdict(rows), **own, **({"test": test} if test else {})}


def _metrics(node: Node, data: Data) -> tuple[MetricSpec, ...]:
    """The metrics: names, or ``name: {option: value}``; the verdicts begin with the first."""
    if node.given is None:
        names = ("answer_nll", *([] if data.builtin is None else [task_class(data.builtin["task"]).metric]))
        return tuple(_metric(name, {}, "") for name in names)
    found: dict[str, MetricSpec] = {}
    for item in node.listed("metrics"):
        name, options = item.given, dict[str, Node]()
        if isinstance(name, dict) and len(name) == 1:
            (name, child), *_ = name.items()
            options = child.mapping(f"metric {name}")
        if not isinstance(name, str):
            raise ConfigError(f"{item.where}: metrics: expected names such as [answer_nll, exact], got {item.value}")
        if name in found:
            raise ConfigError(f"{item.where}: metrics: {name} is given twice")
        found[name] = _metric(name, options, f"{item.where}: metrics: {name}")
    return tuple(found.values())


def _metric(name: str, options: Mapping[str, Node], where: str) -> MetricSpec:
    values: dict[str, Any] = {key: node.value for key, node in options.items()}
    usual = GEOMETRY[name].higher_is_better if name in GEOMETRY else name not in MODEL_METRICS
    higher = values.pop("higher_is_better", usual)
    if type(higher) is not bool:
        raise ConfigError(f"{where}: higher_is_better: expected true or false, got {higher!r}")
    own = {key: options[key] for key in values}
    if name in GEOMETRY:
        method = options_of(JEPAOptions)
        check_keys(
            own, ["objective", *(key for key in method if method[key].group == method["views"].group)], "metrics"
        )
        values = field_values(JEPAOptions, own)
    elif name.startswith(HARNESS):
        values = field_values(HarnessOptions, own, "metrics")
    try:
        if name in GEOMETRY:
            _check_views(values)
        elif name.startswith(HARNESS):
            from stepjepa.evaluation.harness import Harness  # with transformers' models

            task = HarnessOptions(**{**values, "harness": [name.removeprefix(HARNESS)]})
            Harness(task)  # which knows it
            values = asdict(task)
        elif name not in MODEL_METRICS:
            make_metric(name, **values).close()
        elif values:
            raise ConfigError("it has no options")
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return MetricSpec(name, values, higher)


def _select(node: Node, metrics: Sequence[MetricSpec]) -> tuple[str, bool]:
    """The metric that chooses, and whether its highest value wins."""
    section = {"metric": node} if isinstance(node.given, str) else node.mapping("select")
    select = _Select(**field_values(_Select, section, "select"))
    by_name = {metric.name: metric for metric in metrics}
    name = select.metric or metrics[0].name
    if name not in by_name:
        raise ConfigError(f"{node.where}: select: {name!r} is none of the study's metrics ({', '.join(by_name)})")
    return name, by_name[name].higher_is_better if select.rule is None else select.rule == "highest"


def _check_views(values: Mapping[str, Any]) -> None:
    """Check options that say which views of a chat a metric compares."""
    # Where predictors are read, there is a source view that they follow, and a target view.
    if "objective" not in values or not built_in().get(values["objective"], Objective)().takes_predictors:
        raise ConfigError("name the views that it compares, the same for all arms, as in {objective: llm_jepa}")
    views = JEPAOptions(**values, predictors=0)
    views.check()
    if views.step_splitter != LISTED:
        make_splitter(views.step_splitter, views.step_separator)


# Options of training


@cache
def _parser() -> StrictParser:
    return StrictParser((RunOptions, JEPAConfig), aliases=published(RunOptions, JEPAConfig))


def read_training(section: Mapping[str, Node]) -> dict[str, Any]:
    """The options of training that a mapping sets, converted to their types.

    Raises:
        ConfigError: an unknown key, a value that does not fit, a secret, or an option that the study itself sets.
    """
    parser = _parser()
    for name in section.keys() & {one.name for one in parser.options.values() if one.brings}:
        parser.take_up(name, section[name].written)
    check_keys(section, [*parser.options, *parser.aliases])
    given = merge(
        one for name, node in section.items() for one in parser.settings(name, node.written, f"{node.where}: {name}")
    )
    for key, one in given.items():
        if parser.options[key].secret:
            raise ConfigError(f"{one.spelling}: a study keeps its settings in files; set HF_TOKEN in the environment")
        if key in _SET_BY_STUDY:
            raise ConfigError(f"{one.spelling}: a study sets it; give {_SET_BY_STUDY[key]}")
    return {key: one.value.value if isinstance(one.value, Enum) else one.value for key, one in given.items()}


def config_of(values: Mapping[str, Any], place: str = "") -> JEPAConfig:
    """The configuration of a run with these options, which are checked alone and together.

    Raises:
        ConfigError: they cannot be used; the message begins with `place`.
    """
    # The check needs no accelerator, and the machine that it runs on may have none.
    data = {"eval_file": "unused"} if evaluates_on_the_way(values) else {}
    given = {"output_dir": "unused", **values, **data, "use_cpu": True, "fp16": False, "tf32": None}
    try:
        given = carried(options_of(JEPAOptions), given)
        RunOptions(**{k: v for k, v in given.items() if k in options_of(RunOptions)})
        return JEPAConfig(**{k: v for k, v in given.items() if k in options_of(JEPAConfig)})
    except (ValueError, OSError, ConfigError) as error:
        raise ConfigError(f"{place}{error}") from None
