"""The options of ``stepjepa train`` in a study's file: the one place of this package that asks the option parser.

Names, spellings and checks are those of the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from stepjepa.config.option import options_of
from stepjepa.config.parser import StrictParser, carried
from stepjepa.config.spellings import published
from stepjepa.config.values import named_by_file, nearest
from stepjepa.data.steps import LISTED, make_splitter
from stepjepa.errors import ConfigError
from stepjepa.study.tree import Node, check_keys, written
from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import DataOptions, JEPAOptions, not_read, without_effect
from stepjepa.training.run_options import RunOptions

# Options that the study sets, and where its file sets them.
_SET_BY_STUDY = {
    "output_dir": "give output_dir at the top of the study",
    "overwrite_output_dir": "give --overwrite_output_dir to stepjepa study",
    "resume_from_checkpoint": "a study resumes by itself",
    "train_file": "give train_file under data",
    "dataset_split": "give train_split under data",
    "seed": "give seeds at the top of the study",
    "control": "give controls at the top of the study, as in controls: [shuffled, random]",
    "same_flop": "give equal_compute: true at the top of the study",
}
# What a study's runs have unless the file says otherwise.
DEFAULTS = {"track_flop": True, "disable_tqdm": True, "save_total_limit": 1}


@cache
def _parser() -> StrictParser:
    return StrictParser((RunOptions, JEPAConfig), aliases=published(RunOptions, JEPAConfig), prog="stepjepa train")


def read_training(section: Mapping[str, Node]) -> dict[str, Any]:
    """The options that a mapping sets, converted to their types.

    Raises:
        ConfigError: an unknown key, a value that does not fit, a secret, or an option that the study itself sets.
    """
    parser, values, spelt = _parser(), dict[str, Any](), dict[str, str]()
    for name in section.keys() & {one.name for one in parser.options.values() if one.brings}:
        parser.take_up(name, written(section[name]))
    check_keys(section, [*parser.options, *parser.aliases])
    for name, node in section.items():
        place = f"{node.where}: {name}"
        for setting in parser.settings(name, written(node), place):
            field, value = setting.field, setting.value
            if parser.options[field].secret:
                raise ConfigError(f"{place}: a study keeps its settings in files; set HF_TOKEN in the environment")
            if field in _SET_BY_STUDY:
                raise ConfigError(f"{place}: {_SET_BY_STUDY[field]}")
            value = value.value if isinstance(value, Enum) else value
            if values.setdefault(field, value) != value:
                other = f"{spelt[field]} sets it to {values[field]!r}"
                raise ConfigError(f"{place} sets {field} to {value!r}, but {other}; keep one of them")
            spelt[field] = name
    return values


def config_of(values: Mapping[str, Any]) -> JEPAConfig:
    """The configuration of a run with these options, which are checked alone and together.

    Raises:
        ConfigError: they cannot be used.
    """
    # The check needs no accelerator, and the machine that it runs on may have none.
    given = {"output_dir": "unused", **values, "use_cpu": True, "fp16": False, "tf32": None}
    try:
        given = carried(options_of(JEPAOptions), given)
        RunOptions(**{k: v for k, v in given.items() if k in RunOptions.__dataclass_fields__})
        return JEPAConfig(**{k: v for k, v in given.items() if k in JEPAConfig.__dataclass_fields__})
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from None


def file_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run as its file has them: without those of other arms' own objectives, and own files in full."""
    known = {**options_of(RunOptions), **options_of(JEPAConfig)}
    found = {name: value for name, value in carried(known, settings).items() if name in known}
    for name, value in found.items():
        if known[name].own and named_by_file(value) and Path(value.rpartition(":")[0]).is_file():
            file, _, attribute = value.rpartition(":")
            found[name] = f"{Path(file).resolve()}:{attribute}"
    return found


def has_effect(name: str, config: JEPAConfig) -> bool:
    """Whether a run with the configuration reads its option `name`, or has it at its default."""
    return not without_effect(config, [name])


def decides_numbers(name: str) -> bool:
    """Whether an option of training is part of a study's identity: runs that differ in it must not share a table."""
    return _parser().options[name].identity


def chat_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that say how a row becomes a chat, and a chat tokens: a model is asked as it was trained."""
    return {name: value for name, value in values.items() if name in options_of(DataOptions)}


def read_views(section: Mapping[str, Node], where: str) -> dict[str, Any]:
    """Options that say which views of a chat a metric compares, checked.

    Raises:
        ConfigError: another option, a value that cannot be used, or an objective without a source and a target view; the
            message begins with `where`.
    """
    method = options_of(JEPAOptions)
    known = ["objective", *(name for name in method if method[name].group == method["views"].group)]
    values: dict[str, Any] = {}
    for name, node in section.items():
        if name not in known:
            raise ConfigError(f"{where}: unknown option {name!r}; did you mean {nearest(name, known)!r}?")
        try:
            values[name] = method[name].read(written(node))
        except ValueError as error:
            raise ConfigError(f"{where}: {name}: {error}") from None
    # Where predictors are read, there is a source view that they follow, and a target view.
    if "objective" not in values or "predictors" in not_read(values["objective"]):
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
