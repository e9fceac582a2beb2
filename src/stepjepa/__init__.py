"""Train language models with joint-embedding predictive objectives (JEPA).

Importing the package loads no torch. Its names are imported from their modules when first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stepjepa.api import __all__ as _functions
from stepjepa.version import __version__

if TYPE_CHECKING:
    from stepjepa.api import *  # noqa: F403
    from stepjepa.inspect.view import RowView, show_row
    from stepjepa.training.config import JEPAConfig
    from stepjepa.training.trainer import JEPATrainer

__all__ = ["JEPAConfig", "JEPATrainer", "RowView", "__version__", "show_row", *_functions]

_HOMES = {
    **dict.fromkeys(_functions, "stepjepa.api"),
    "JEPAConfig": "stepjepa.training.config",
    "JEPATrainer": "stepjepa.training.trainer",
    "RowView": "stepjepa.inspect.view",
    "show_row": "stepjepa.inspect.view",
}
_PACKAGES = ("inspect", "report", "study")  # with the name of a command


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"stepjepa.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Command(ModuleType):
    """A package with the name of a command, which can be called: ``stepjepa.study(...)`` is `stepjepa.api.study`."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return getattr(import_module("stepjepa.api"), self.__name__.rpartition(".")[2])(*args, **options)


class _Package(ModuleType):
    """This package: the import system sets a subpackage as its attribute, which becomes callable where it is a command."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and name in _PACKAGES:
            value.__class__ = _Command
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
