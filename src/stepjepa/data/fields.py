"""Fields of option dataclasses, as the command line reads them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import Field, field
from typing import Any

from stepjepa.errors import ConfigError


def option(default: Any, help: str, group: str, **metadata: Any) -> Any:
    """A dataclass field with a help text and the group it is shown in."""
    return field(default=default, metadata={"help": help, "group": group, **metadata})


def is_secret(field: Field[Any]) -> bool:
    """Whether an option's value must not reach a file or a message: its name ends in ``_token``, as transformers has it,
    unless the metadata says otherwise."""
    return bool(field.metadata.get("secret", field.name.endswith("_token")))


def check_split_name(split: str, option: str = "dataset_split") -> None:
    """Refuse a share in place of a split's name.

    Raises:
        ConfigError: it is a number.
    """
    with contextlib.suppress(ValueError):
        float(split)
        raise ConfigError(
            f"--{option} {split}: is a number, and the name of a data set's split is expected; to hold rows back, run "
            "stepjepa prepare FILE --valid_ratio SHARE, and give what it writes as --eval_file"
        )


def check_at_least(options: Any, least: Mapping[str, float]) -> None:
    """Check that numbers are finite and large enough; None passes where the option's type allows it.

    Raises:
        ConfigError: one that is not; the message names the option.
    """
    for name, smallest in least.items():
        value = getattr(options, name)
        if value is None and "None" in str(type(options).__dataclass_fields__[name].type):
            continue
        if not smallest <= value < float("inf"):
            raise ConfigError(f"{name} is {value}; it must be at least {smallest}")
