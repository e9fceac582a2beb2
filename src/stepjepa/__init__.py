"""Train language models with joint-embedding predictive objectives (JEPA).

Importing the package loads no torch. The names below are imported from their modules when first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stepjepa.version import __version__

if TYPE_CHECKING:
    from stepjepa.api import (
        analyze,
        check,
        compare,
        demo,
        evaluate,
        export,
        generate,
        inspect,
        prepare,
        report,
        study,
        train,
    )
    from stepjepa.inspect.view import RowView, show_row
    from stepjepa.training.config import JEPAConfig
    from stepjepa.training.trainer import JEPATrainer

__all__ = [
    "JEPAConfig",
    "JEPATrainer",
    "RowView",
    "__version__",
    "analyze",
    "check",
    "compare",
    "demo",
    "evaluate",
    "export",
    "generate",
    "inspect",
    "prepare",
    "report",
    "show_row",
    "study",
    "train",
]

_API = "stepjepa.api"
_LAZY = {
    "JEPAConfig": "stepjepa.training.config",
    "JEPATrainer": "stepjepa.training.trainer",
    "RowView": "stepjepa.inspect.view",
    "show_row": "stepjepa.inspect.view",
    "analyze": _API,
    "check": _API,
    "compare": _API,
    "demo": _API,
    "evaluate": _API,
    "export": _API,
    "generate": _API,
    "prepare": _API,
    "train": _API,
}
_PACKAGES = ("inspect", "report", "study")  # with the name of a command


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"stepjepa.{name}")
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Command(ModuleType):
    """A package with the name of a command, which can be called: ``stepjepa.study(...)`` is `stepjepa.api.study`."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return getattr(import_module(_API), self.__name__.rpartition(".")[2])(*args, **options)


class _Package(ModuleType):
    """This package: the import system sets a subpackage as its attribute, which becomes callable where it is a command."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and name in _PACKAGES:
            value.__class__ = _Command
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
