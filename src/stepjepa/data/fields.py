"""Fields of option dataclasses, as the command line reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from stepjepa.errors import ConfigError


def option(default: Any, help: str, group: str, **metadata: Any) -> Any:
    """A dataclass field with a help text and the group it is shown in."""
    return field(default=default, metadata={"help": help, "group": group, **metadata})


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
