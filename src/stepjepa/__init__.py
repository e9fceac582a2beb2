"""Train language models with joint-embedding predictive objectives (JEPA).

Importing the package loads no torch. The names below are imported from their modules when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepjepa.api import export, train
    from stepjepa.inspect.check.report import check
    from stepjepa.inspect.view import RowView, inspect, show_row
    from stepjepa.training.config import JEPAConfig
    from stepjepa.training.trainer import JEPATrainer

__version__ = "0.1.0"

__all__ = ["JEPAConfig", "JEPATrainer", "RowView", "__version__", "check", "export", "inspect", "show_row", "train"]

_LAZY = {
    "JEPAConfig": "stepjepa.training.config",
    "JEPATrainer": "stepjepa.training.trainer",
    "RowView": "stepjepa.inspect.view",
    "check": "stepjepa.inspect.check.report",
    "export": "stepjepa.api",
    "inspect": "stepjepa.inspect",  # the package itself, which can be called
    "show_row": "stepjepa.inspect.view",
    "train": "stepjepa.api",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = import_module(module)
    value = found if module == f"{__name__}.{name}" else getattr(found, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
