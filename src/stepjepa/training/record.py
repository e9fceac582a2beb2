"""What a resumed run must share with its checkpoint; written into every checkpoint.

The record holds exactly the options that must be equal (`stepjepa.config.option`: those without ``resume=True``), so a name
that is in it and differs is a refusal, and nothing else is compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stepjepa.config.option import options_of
from stepjepa.config.yaml_file import representable
from stepjepa.errors import ConfigError
from stepjepa.objectives.base import objective_of
from stepjepa.training.config import JEPAConfig, fixed_on_resume
from stepjepa.training.run_folder import RESUME_RECORD
from stepjepa.training.run_options import RunOptions
from stepjepa.utils.files import read_json, write_json


@dataclass(frozen=True)
class ResumeRecord:
    """The fixed facts of a run.

    Attributes:
        settings: option -> value, as JSON holds it; of a PEFT model the adapter's as well.
        data: training data set -> fingerprint.
        processes: of the run.
    """

    settings: dict[str, Any]
    data: dict[str, str] = field(default_factory=dict)
    processes: int = 1

    def write(self, checkpoint: Path) -> None:
        """Write the record into a checkpoint."""
        write_json(checkpoint / RESUME_RECORD, asdict(self))

    @classmethod
    def read(cls, checkpoint: Path) -> ResumeRecord:
        """What `write` wrote."""
        return cls(**read_json(checkpoint / RESUME_RECORD))

    def check_same(self, before: ResumeRecord, where: Path) -> None:
        """Refuse to resume a run, whose record is `before`, with other data or other settings.

        Args:
            where: the run's folder or checkpoint, for messages.

        Raises:
            ConfigError: what differs, with both values.
        """
        advice = "give another --output_dir"
        for name, new in self.settings.items():
            old = before.settings.get(name, new)
            if old != new:
                raise ConfigError(
                    f"--resume_from_checkpoint: the run in {where} has {name}={old}, not {new}; resume with the same "
                    f"settings, or {advice}"
                )
        if before.processes != self.processes:
            raise ConfigError(
                f"--resume_from_checkpoint: the run in {where} has {before.processes} processes, not {self.processes}; "
                f"resume with as many, or {advice}"
            )
        if before.data != self.data:
            raise ConfigError(
                f"--resume_from_checkpoint: the training data is not that of the run in {where}; resume with the same file, "
                f"or {advice}"
            )


def fixed_settings(config: JEPAConfig, run: RunOptions | None = None, peft_config: Any = None) -> dict[str, Any]:
    """The settings of a run that must be equal when it is resumed, as JSON holds them."""
    found: dict[str, Any] = {}
    if run is not None:
        found = {name: getattr(run, name) for name, one in options_of(RunOptions).items() if not one.resume}
    elif peft_config is not None:
        adapter = peft_config.to_dict()
        names = ("peft_type", "r", "lora_alpha", "lora_dropout", "target_modules")
        found = {f"peft.{name}": adapter[name] for name in names if name in adapter}
    found |= {name: getattr(config, name) for name in fixed_on_resume()}
    found |= objective_of(config).code
    return plain_settings(found)


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON gives them back; those that it cannot hold are left out."""
    found = {}
    for name, value in settings.items():
        try:
            found[name] = json.loads(json.dumps(representable(sorted(value) if isinstance(value, set) else value)))
        except TypeError:
            continue
    return found
