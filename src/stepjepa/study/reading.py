"""From a study's YAML file to a `Study`, every value checked and every message with file and line.

Options of training have the names, spellings and checks of the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

from stepjepa.config.option import Names, options_of
from stepjepa.config.parser import StrictParser, carried
from stepjepa.config.spellings import published
from stepjepa.config.values import did_you_mean, nearest
from stepjepa.data.steps import LISTED, make_splitter
from stepjepa.data.tasks import make_task, task_class
from stepjepa.errors import ConfigError
from stepjepa.evaluation.metrics import METRICS, MODEL_METRICS, make_metric, metric_class
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
from stepjepa.study.tree import Node, check_keys, field_values, merged, open_study, set_value
from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import JEPAOptions, without_effect
from stepjepa.training.run_options import RunOptions

_NAME = Names(RunOptions, JEPAConfig, StudyOptions)
# What a study's runs have unless the file says otherwise.
DEFAULTS = {_NAME.track_flop: True, _NAME.disable_tqdm: True, _NAME.save_total_limit: 1}
# Options that the study sets, and where its file sets them.
_SET_BY_STUDY = {
    _NAME.output_dir: f"give {_NAME.output_dir} at the top of the study",
    _NAME.overwrite_output_dir: f"give --{_NAME.overwrite_output_dir} to stepjepa study",
    _NAME.resume_from_checkpoint: "a study resumes by itself",
    _NAME.train_file: f"give {_NAME.train_file} under data",
    _NAME.dataset_split: "give train_split under data",
    _NAME.seed: "give seeds at the top of the study",
    _NAME.control: "give controls at the top of the study, as in controls: [shuffled, random]",
    _NAME.same_flop: "give equal_compute: true at the top of the study",
}
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][\w.,=-]{0,99}")


@dataclass(frozen=True)
class _BlockValues:
    """What a block says by plain values."""

    seeds: list[int] = field(default_factory=list)
    tune_seeds: list[int] = field(default_factory=list)
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


_STUDY_KEYS = [f.name for f in fields(Study) if f.name != "notes"]
_BLOCK_KEYS = ["base", "arms", "grid", "tune", "data", "metrics", "select", "evaluate", "order"]
_BLOCK_KEYS += [f.name for f in fields(_BlockValues)]


def read_options(options: StudyOptions) -> Study:
    """The study that the options of the command name, with what they change.

    Raises:
        ConfigError: it cannot be used.
    """
    name, tree = open_study(str(options.file))
    replaced = {name: getattr(options, name) for name in (_NAME.jobs, _NAME.executor, _NAME.seeds)}
    assignments = [f"{name}={value}" for name, value in replaced.items() if value is not None]
    for assignment in [*assignments, *(options.overrides or [])]:
        tree = set_value(tree, assignment, options.mini)
    study = read_study(tree, name, options.mini, output_dir=options.output_dir)
    if options.blocks is None:
        return study
    known = [block.name for block in study.blocks]
    unknown = [name for name in options.blocks if name not in known]
    if unknown:
        raise ConfigError(
            f"--{_NAME.blocks} {unknown[0]}: the study has no such block; it has {', '.join(known) or 'none'}"
        )
    return replace(study, blocks=tuple(block for block in study.blocks if block.name in options.blocks))


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
    tree = dict(root.mapping("study"))
    check_keys(tree, [*_STUDY_KEYS, *_BLOCK_KEYS, "mini"], "study")
    small = tree.pop("mini", None)
    if mini:
        if small is None:
            raise ConfigError(f"{root.where}: --{_NAME.mini}: this study has no section 'mini'")
        over = small.mapping("mini")
        check_keys(over, [*_STUDY_KEYS, *_BLOCK_KEYS], "mini")
        tree.pop("blocks", None)
        tree = merged(Node(tree, root.where), Node(over, small.where), replaced=["data"]).given
    shared = Node({key: node for key, node in tree.items() if key in _BLOCK_KEYS}, root.where)
    parts = tree.pop("blocks", Node(None, root.where)).mapping("blocks") or {"": Node({}, root.where)}
    notes = list[str]()
    blocks = tuple(_block(part, own, shared, notes) for part, own in parts.items())
    values = field_values(Study, tree)
    values.setdefault("title", name)
    values.setdefault("output_dir", Path(f"runs/{name}{'-mini' if mini else ''}"))
    queued = values.get("executor") in ("slurm", "ray")  # a queue holds many jobs at no cost
    values.setdefault("jobs", 100 if queued else 1)
    if output_dir:
        values["output_dir"] = Path(output_dir)
    return Study(**values, blocks=blocks, notes=tuple(dict.fromkeys(notes)))


def _block(name: str, own: Node, shared: Node, notes: list[str]) -> Block:
    """A block: what it says itself on top of what all share. `notes` takes what its reader should know."""
    if name:
        _check_name(name, own.where)
    check_keys(own.mapping(f"block {name}"), _BLOCK_KEYS, f"block {name}")
    node = merged(shared, Node(own.given or {}, own.where), replaced=["data"])
    tree: dict[str, Node] = {**dict.fromkeys(_BLOCK_KEYS, Node(None, node.where)), **node.given}
    values = _BlockValues(**field_values(_BlockValues, node.given))
    seeds, every = values.seeds, [*values.seeds, *values.tune_seeds]
    if not seeds or min(every) < 0 or len(set(every)) < len(every):
        expected = "expected different whole numbers from 0 on, as in seeds: [1, 2, 3]"
        also = ", and others for tune_seeds" if values.tune_seeds else ""
        raise ConfigError(f"{tree['seeds'].where}: seeds: {expected}{also}")
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
    data = _data(tree["data"])
    if "select" not in data.files and data.builtin is None and any(arm.tuned for arm in arms.values()):
        raise ConfigError(
            f"{tree['data'].where}: tune needs select_file, a validation file, under data: what is tuned on the test file "
            "is no result"
        )
    settings = ({**base, **arm.settings} for arm in arms.values())
    if "select" not in data.files and data.builtin is None and any(map(evaluates_on_the_way, settings)):
        remedy = f"give {_FILE.select_file}, a validation file, under data, or {_NAME.eval_file}"
        raise ConfigError(f"{tree['data'].where}: {_NAME.eval_strategy} has no data to evaluate on; {remedy}")
    metrics = _metrics(tree["metrics"], data)
    evaluation = Evaluation(**field_values(Evaluation, tree["evaluate"].mapping("evaluate"), "evaluate"))
    select = _select(tree["select"], metrics)
    return Block(
        name,
        base,
        tuple(arms.values()),
        values.baseline,
        tuple(seeds),
        data,
        metrics,
        select,
        evaluation,
        tuple(values.tune_seeds),
        _order(tree["order"], arms),
    )


def _order(node: Node, arms: Mapping[str, Arm]) -> tuple[tuple[str, ...], ...]:
    """Groups of rows of the table, of which earlier ones are run first."""
    if node.given is None:
        return ()
    groups = [[str(row.value) for row in group.listed("order")] for group in node.listed("order")]
    known = [row for arm in arms.values() for row in arm.rows.values()]
    for row in (row for group in groups for row in group):
        if row not in known:
            raise ConfigError(
                f"{node.where}: order: {row!r} is no row of the table; did you mean {nearest(row, known)!r}?"
            )
    return tuple(map(tuple, groups))


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
    if "controls" in section:  # instead of the block's
        own = field_values(_BlockValues, {"controls": section.pop("controls")}).get("controls", [])
        wanted = [*own, *(variant for variant in wanted if variant == SAME_FLOP)]
    settings = read_training(section)
    values = {**base, **settings}
    config = config_of(values, f"{where}: arm {name}: ")
    cells = _cells({**shared_tune.mapping("tune"), **tune.mapping("tune")}, values, config, f"arm {name}")
    variants = list[str]()
    for variant in wanted if objective_of(config).makes_pairs else ():
        try:
            config_of({**values, **varied(variant)})
            variants.append(variant)
        except ConfigError as error:
            notes.append(f"arm {name} is run without {variant}: {error}")
    notes += [f"arm {name}: {key} has no effect" for key in settings if without_effect(config, [key])]
    control = None if control_arm.given is None else str(control_arm.value)
    return Arm(name, settings, cells, objective_of(config).makes_pairs, tuple(variants), control)


def _cells(
    lists: Mapping[str, Node], values: Mapping[str, Any], config: JEPAConfig, what: str
) -> tuple[dict[str, Any], ...]:
    """All combinations of the values to be tuned, without those that the arm does not read (lbd of `regular`)."""
    choices = []
    for key, node in lists.items():
        read = [read_training({key: item}) for item in node.listed(f"tune {key}")]
        if not any(without_effect(config_of({**values, **choice}), list(choice)) for choice in read):
            choices.append(read)
    cells: list[dict[str, Any]] = []
    for combination in product(*choices):
        cell = {name: value for part in combination for name, value in part.items()}
        where = f"{next(iter(lists.values())).where}: tune, {what}" if lists else what
        pairs = objective_of(config_of({**values, **cell}, f"{where}: ") if cell else config).makes_pairs
        if pairs != objective_of(config).makes_pairs:
            raise ConfigError(f"{where}: with {cell} it is no JEPA arm any more, or becomes one")
        cells += [cell] if cell not in cells else []
    return tuple(cells)


# Data and metrics


def _data(node: Node) -> Data:
    if node.given is None:
        raise ConfigError(f"{node.where}: there is no data; give {_DATA_EXAMPLE}")
    section = {"builtin": Node(None, node.where)} if node.given == "builtin" else node.mapping("data")
    if "builtin" in section:
        return Data(builtin=_builtin(section, node.where))
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
    return Data(files=files, splits=splits)


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
    values = {key: node.value for key, node in options.items()}
    usual = name not in MODEL_METRICS
    if name in GEOMETRY:
        usual = GEOMETRY[name].higher_is_better
    elif name in METRICS:
        usual = metric_class(name).higher_is_better
    higher = values.pop("higher_is_better", usual)
    if type(higher) is not bool:
        raise ConfigError(f"{where}: higher_is_better: expected true or false, got {higher!r}")
    if name in GEOMETRY:
        return MetricSpec(name, _read_views({key: options[key] for key in values}, where), higher)
    if name in MODEL_METRICS and values:
        raise ConfigError(f"{where} has no options")
    if name.startswith(HARNESS):
        from stepjepa.evaluation.harness import Harness  # with transformers' models

        own = field_values(HarnessOptions, {key: options[key] for key in values}, where)
        task = replace(HarnessOptions(**own), harness=[name.removeprefix(HARNESS)])
        Harness(task)  # which knows it
        return MetricSpec(name, asdict(task), higher)
    near = nearest(name, [*METRICS, *MODEL_METRICS, *GEOMETRY])
    if name not in METRICS and ":" not in name and near in GEOMETRY:
        raise ConfigError(f"{where}: unknown metric {name!r}; did you mean {near!r}?")
    try:
        if name not in MODEL_METRICS:
            make_metric(name, **values).close()
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


def _read_views(section: Mapping[str, Node], where: str) -> dict[str, Any]:
    """Options that say which views of a chat a metric compares, checked."""
    method = options_of(JEPAOptions)
    known = ["objective", *(name for name in method if method[name].group == method["views"].group)]
    values: dict[str, Any] = {}
    for name, node in section.items():
        if name not in known:
            raise ConfigError(f"{where}: unknown option {name!r}{did_you_mean(name, known)}")
        try:
            values[name] = method[name].read(node.written)
        except ValueError as error:
            raise ConfigError(f"{where}: {name}: {error}") from None
    # Where predictors are read, there is a source view that they follow, and a target view.
    if "objective" not in values or not built_in().get(values["objective"], Objective)().takes_predictors:
        raise ConfigError(
            f"{where}: name the views that it compares, the same for all arms, as in {{objective: llm_jepa}}"
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
    """The options of training that a mapping sets, converted to their types.

    Raises:
        ConfigError: an unknown key, a value that does not fit, a secret, or an option that the study itself sets.
    """
    parser, values, spelt = _parser(), dict[str, Any](), dict[str, str]()
    for name in section.keys() & {one.name for one in parser.options.values() if one.brings}:
        parser.take_up(name, section[name].written)
    check_keys(section, [*parser.options, *parser.aliases])
    for name, node in section.items():
        place = f"{node.where}: {name}"
        for setting in parser.settings(name, node.written, place):
            key, value = setting.field, setting.value
            if parser.options[key].secret:
                raise ConfigError(f"{place}: a study keeps its settings in files; set HF_TOKEN in the environment")
            if key in _SET_BY_STUDY:
                raise ConfigError(f"{place}: {_SET_BY_STUDY[key]}")
            value = value.value if isinstance(value, Enum) else value
            if values.setdefault(key, value) != value:
                other = f"{spelt[key]} sets it to {values[key]!r}"
                raise ConfigError(f"{place} sets {key} to {value!r}, but {other}; keep one of them")
            spelt[key] = name
    return values


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
