"""From a study's YAML file to a `Study`, every value checked and every message with file and line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from stepjepa.config.values import BadValue, convert, nearest
from stepjepa.errors import ConfigError
from stepjepa.study.reading_data import read_data, read_evaluation, read_metrics, read_select
from stepjepa.study.settings import DEFAULTS, TrainSettings, has_effect
from stepjepa.study.spec import CONTROLS, EXECUTORS, SAME_FLOP, Arm, Block, Study
from stepjepa.study.tree import Node, listed, mapping, merged, shown, typed
from stepjepa.training.config import JEPAConfig

_STUDY_KEYS = "title shows source output_dir jobs executor slurm keep_models alpha blocks mini".split()
_BLOCK_KEYS = "base arms grid tune baseline seeds controls equal_compute data metrics select evaluate".split()
_ARM_KEYS = ("grid", "tune", "control_arm")
_NAME = re.compile(r"[A-Za-z0-9][\w.,=-]{0,99}")
# A slurm queue holds many jobs at no cost to its user.
_JOBS = {"processes": 1, "local": 1, "slurm": 100}


def read_study(root: Node, name: str, mini: bool = False, settings: TrainSettings | None = None) -> Study:
    """The study that a tree says.

    Args:
        root: of the file, overrides set.
        name: of the study, for its title and folder where the file gives none.
        mini: put the section ``mini`` on top, which stands in place of the blocks too.

    Raises:
        ConfigError: anything that cannot be understood or used.
    """
    parser = settings or TrainSettings()
    tree = dict(mapping(root, "study"))
    check_keys(tree, [*_STUDY_KEYS, *_BLOCK_KEYS], "study")
    small = tree.pop("mini", None)
    if mini:
        if small is None:
            raise ConfigError(f"{root.where}: --mini: this study has no section 'mini'")
        tree.pop("blocks", None)
        tree = _on_top(Node(tree, root.where), Node(mapping(small, "mini"), small.where)).given
        check_keys(tree, [*(key for key in _STUDY_KEYS if key != "mini"), *_BLOCK_KEYS], "mini")
    shared = {key: node for key, node in tree.items() if key in _BLOCK_KEYS}
    parts = mapping(tree["blocks"], "blocks") if "blocks" in tree else {"": Node({}, root.where)}
    blocks, notes = [], []
    for part, over in parts.items():
        if part:
            check_name(part, over.where)
        own = mapping(over, f"block {part}")
        check_keys(own, _BLOCK_KEYS, f"block {part}")
        block, said = _block(part, _on_top(Node(shared, root.where), Node(own, over.where)), parser)
        blocks.append(block)
        notes += said
    executor = _scalar(tree, "executor", str, "processes")
    if executor not in EXECUTORS:
        raise ConfigError(f"{tree['executor'].where}: executor is {executor!r}; known: {', '.join(EXECUTORS)}")
    jobs = _scalar(tree, "jobs", int, _JOBS[executor])
    if jobs < 1:
        raise ConfigError(f"{tree['jobs'].where}: jobs is {jobs}; at least 1 run at a time")
    alpha = _scalar(tree, "alpha", float, 0.05)
    if not 0 < alpha < 1:
        raise ConfigError(f"{tree['alpha'].where}: alpha is {alpha}; it must lie between 0 and 1")
    folder = f"runs/{name}{'-mini' if mini else ''}"
    return Study(
        title=_scalar(tree, "title", str, name),
        output_dir=Path(_scalar(tree, "output_dir", str, folder)),
        blocks=tuple(blocks),
        shows=_scalar(tree, "shows", str, ""),
        jobs=jobs,
        executor=executor,
        slurm=typed(tree["slurm"]) if mapping(tree.get("slurm", Node(None, "")), "slurm") else {},
        keep_models=_scalar(tree, "keep_models", bool, True),
        alpha=alpha,
        notes=tuple(dict.fromkeys(notes)),
    )


def check_keys(given: Mapping[str, Node], known: list[str], what: str) -> None:
    """Refuse unknown keys.

    Raises:
        ConfigError: there is one; the message names the nearest known one.
    """
    for key, node in given.items():
        if key not in known:
            raise ConfigError(f"{node.where}: {what}: unknown key {key!r}; did you mean {nearest(key, known)!r}?")


def check_name(name: str, where: str) -> None:
    """Refuse names that no folder should have.

    Raises:
        ConfigError: such a name.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: the name {name!r}: use letters, digits and _ . , = - (it becomes a folder's name)")


def _on_top(under: Node, over: Node) -> Node:
    """`merged`, but that data are taken as a whole: files of two places make no splits."""
    rest = {key: node for key, node in under.given.items() if key != "data" or key not in over.given}
    return merged(Node(rest, under.where), over)


def _scalar(tree: Mapping[str, Node], key: str, kind: type, default: Any) -> Any:
    if key not in tree or tree[key].given is None:
        return default
    try:
        return convert(kind, tree[key].given)
    except BadValue as error:
        raise ConfigError(f"{tree[key].where}: {key}: {error}") from None


def _block(name: str, node: Node, parser: TrainSettings) -> tuple[Block, list[str]]:
    tree = mapping(node, "study")
    base = {**DEFAULTS, **parser.read(mapping(tree.get("base", Node({}, node.where)), "base"))}
    seeds = tuple(_seeds(tree, node.where))
    controls = _controls(tree)
    if _scalar(tree, "equal_compute", bool, False):
        controls.append(SAME_FLOP)
    arms, notes = [], []
    for where, arm_name, own in _named_arms(tree, node.where):
        arm, said = _arm(arm_name, own, base, tree.get("tune"), controls, parser, where)
        arms.append(arm)
        notes += said
    names = [arm.name for arm in arms]
    if len(set(names)) < len(names):
        twice = next(arm for i, arm in enumerate(names) if arm in names[:i])
        raise ConfigError(f"{tree['arms'].where}: two arms are named {twice!r}")
    baseline = _scalar(tree, "baseline", str, "regular")
    if baseline not in names:
        where = tree["baseline"].where if "baseline" in tree else node.where
        raise ConfigError(f"{where}: the baseline {baseline!r} is no arm; there are: {', '.join(names)}")
    for arm in arms:
        if arm.control_arm is not None and (arm.control_arm not in names or arm.control_arm == arm.name):
            raise ConfigError(f"{node.where}: control_arm of {arm.name} is {arm.control_arm!r}, which is no other arm")
    data = read_data(tree.get("data"), node.where)
    metrics = read_metrics(tree.get("metrics"), data)
    if data.select is None and data.builtin is None and any(len(arm.cells) > 1 for arm in arms):
        raise ConfigError(
            f"{tree['data'].where}: tune needs select_file, a validation file, under data: what is tuned on the test file "
            "is no result"
        )
    select = read_select(tree.get("select"), metrics)
    evaluation = read_evaluation(tree.get("evaluate"))
    return Block(name, base, tuple(arms), baseline, seeds, data, metrics, select, evaluation), notes


def _seeds(tree: Mapping[str, Node], where: str) -> list[int]:
    if "seeds" not in tree:
        raise ConfigError(f"{where}: seeds are missing; give a list such as seeds: [1, 2, 3]")
    seeds = []
    for item in listed(tree["seeds"], "seeds"):
        seeds.append(_scalar({"seeds": item}, "seeds", int, None))
        if seeds[-1] is None or seeds[-1] < 0 or seeds[-1] in seeds[:-1]:
            raise ConfigError(f"{item.where}: seeds: expected different whole numbers from 0 on, got {shown(item)}")
    return seeds


def _controls(tree: Mapping[str, Node]) -> list[str]:
    if "controls" not in tree or tree["controls"].given in (None, []):
        return []
    found = []
    for item in listed(tree["controls"], "controls"):
        if item.given not in CONTROLS or item.given in found:
            raise ConfigError(
                f"{item.where}: controls: expected {' and '.join(CONTROLS)}, each once, got {shown(item)}"
            )
        found.append(str(item.given))
    return found


def _named_arms(tree: Mapping[str, Node], where: str) -> Iterator[tuple[str, str, Mapping[str, Node]]]:
    """(where, name, overrides) of every arm, grids expanded."""
    arms = dict(mapping(tree["arms"], "arms")) if "arms" in tree else {}
    given = [(node.where, name, mapping(node, f"arm {name}")) for name, node in arms.items()]
    if "grid" in tree:
        given.append((tree["grid"].where, "", {"grid": tree["grid"]}))
    if not given:
        raise ConfigError(f"{where}: there are no arms; give arms: with a name and the overrides of each")
    for place, name, section in given:
        own = {key: node for key, node in section.items() if key != "grid"}
        if "grid" not in section:
            check_name(name, place)
            yield place, name, own
            continue
        lists = {key: listed(node, f"grid {key}") for key, node in mapping(section["grid"], "grid").items()}
        for choice in product(*lists.values()):
            cell = dict(zip(lists, choice, strict=True))
            label = ",".join([*([name] if name else []), *(f"{key}={_word(node)}" for key, node in cell.items())])
            check_name(label, place)
            yield place, label, {**own, **cell}


def _word(node: Node) -> str:
    value = typed(node)
    text = (
        "-".join(map(str, value))
        if isinstance(value, list)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
    return re.sub(r"[^\w.-]", "_", text)


def _arm(
    name: str,
    section: Mapping[str, Node],
    base: Mapping[str, Any],
    shared_tune: Node | None,
    controls: list[str],
    parser: TrainSettings,
    where: str,
) -> tuple[Arm, list[str]]:
    """One arm, and what should be said of it."""
    settings = parser.read({key: node for key, node in section.items() if key not in _ARM_KEYS})
    try:
        _, config = parser.options_of({**base, **settings})
    except ConfigError as error:
        raise ConfigError(f"{where}: arm {name}: {error}") from None
    lists: dict[str, Node] = dict(mapping(shared_tune, "tune")) if shared_tune is not None else {}
    lists |= mapping(section["tune"], "tune") if "tune" in section else {}
    cells = _cells(lists, {**base, **settings}, config, parser, f"arm {name}")
    jepa = config.uses_pairs
    variants, notes = [], []
    for variant in controls if jepa else ():
        extra = {SAME_FLOP: True} if variant == SAME_FLOP else {"control": variant}
        try:
            parser.options_of({**base, **settings, **extra})
            variants.append(variant)
        except ConfigError as error:
            notes.append(f"arm {name} is run without {variant}: {error}")
    notes += [f"arm {name}: {key} has no effect" for key in settings if not has_effect(key, config)]
    control_arm = _scalar(section, "control_arm", str, None)
    return Arm(name, settings, cells, jepa, tuple(variants), control_arm), notes


def _cells(
    lists: Mapping[str, Node], values: Mapping[str, Any], config: JEPAConfig, parser: TrainSettings, what: str
) -> tuple[dict[str, Any], ...]:
    """All combinations of the values to be tuned, without those that the arm does not read (lbd of `regular`)."""
    read: list[list[dict[str, Any]]] = []
    for key, node in lists.items():
        choices = [parser.read({key: item}) for item in listed(node, f"tune {key}")]
        names = {name for choice in choices for name in choice}
        if all(has_effect(name, parser.options_of({**values, **choice})[1]) for choice in choices for name in names):
            read.append(choices)
    cells: list[dict[str, Any]] = []
    for choice in product(*read):
        cell = {name: value for part in choice for name, value in part.items()}
        try:
            _, made = parser.options_of({**values, **cell})
        except ConfigError as error:
            raise ConfigError(f"{next(iter(lists.values())).where}: tune, {what}: {error}") from None
        if made.uses_pairs != config.uses_pairs:
            raise ConfigError(
                f"{next(iter(lists.values())).where}: tune, {what}: with {cell} it is no JEPA arm any more, or one"
            )
        if cell not in cells:
            cells.append(cell)
    return tuple(cells) or ({},)
