"""The options of ``stepjepa train`` in a study file, read and checked by the parser of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from stepjepa.config.option import is_secret
from stepjepa.config.parser import StrictParser
from stepjepa.config.spellings import published
from stepjepa.config.values import nearest
from stepjepa.errors import ConfigError
from stepjepa.study.tree import Node, written
from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import without_effect
from stepjepa.training.run_options import RunOptions

# Options that the study sets, and where it is told what to set.
OWN = {
    "output_dir": "give output_dir at the top of the study",
    "overwrite_output_dir": "give --overwrite_output_dir to stepjepa study",
    "resume_from_checkpoint": "a study goes on by itself",
    "train_file": "give train_file under data",
    "dataset_split": "give train_split under data",
    "seed": "give seeds at the top of the study",
    "control": "give controls at the top of the study, as in controls: [shuffled, random]",
    "same_flop": "give equal_compute: true at the top of the study",
}
_FIELDS = JEPAConfig.__dataclass_fields__
# What a study's runs have unless the file says otherwise.
DEFAULTS = {"track_flop": True, "disable_tqdm": True, "save_total_limit": 1}


class TrainSettings(StrictParser):
    """Reads training options out of mappings of a study file, with the same names, spellings and checks as flags."""

    def __init__(self) -> None:
        super().__init__((RunOptions, JEPAConfig), aliases=published(RunOptions, JEPAConfig), prog="stepjepa train")

    def read(self, section: Mapping[str, Node]) -> dict[str, Any]:
        """The fields that a mapping sets, converted to their types.

        Raises:
            ConfigError: an unknown key, a value that does not fit, or an option that the study itself sets.
        """
        values: dict[str, Any] = {}
        spelt: dict[str, str] = {}
        for name, node in section.items():
            if name not in self.options and name not in self.aliases:
                close = nearest(name, [*self.options, *self.aliases])
                raise ConfigError(f"{node.where}: unknown key {name!r}; did you mean {close!r}?")
            for setting in self.settings(name, written(node), f"{node.where}: {name}"):
                field, value = setting.field, setting.value
                if field in _FIELDS and is_secret(_FIELDS[field]):
                    raise ConfigError(
                        f"{node.where}: {name}: a study keeps its settings in files; set HF_TOKEN in the environment instead"
                    )
                if field in OWN:
                    raise ConfigError(f"{node.where}: {name}: {OWN[field]}")
                if field in values and values[field] != value:
                    raise ConfigError(
                        f"{node.where}: {name} sets {field} to {value!r}, but {spelt[field]} sets it to {values[field]!r}; "
                        "keep one of them"
                    )
                values[field], spelt[field] = value.value if isinstance(value, Enum) else value, name
        return values

    def options_of(self, values: Mapping[str, Any]) -> tuple[RunOptions, JEPAConfig]:
        """The options of a run with these fields.

        Raises:
            ConfigError: values that cannot be used, alone or together.
        """
        # The check needs no accelerator, and the machine that it runs on may have none.
        given = {"output_dir": "unused", **values, "use_cpu": True, "fp16": False, "tf32": None}
        made: list[Any] = []
        for dtype in (RunOptions, JEPAConfig):
            try:
                made.append(dtype(**{k: v for k, v in given.items() if k in dtype.__dataclass_fields__}))
            except (ValueError, OSError) as error:
                raise ConfigError(str(error)) from None
        return made[0], made[1]


def has_effect(name: str, config: JEPAConfig) -> bool:
    """Whether a run with the configuration reads its option `name`, or at least has it at its default."""
    return not without_effect(config, [name])
