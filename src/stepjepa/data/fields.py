"""Fields of option dataclasses, as the command line reads them."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, help: str, group: str, **metadata: Any) -> Any:
    """A dataclass field with a help text and the group it is shown in."""
    return field(default=default, metadata={"help": help, "group": group, **metadata})
