"""Train language models with joint-embedding predictive objectives (JEPA).

Importing the package loads no torch. Its names are imported from their modules when first used. `stepjepa.inspect`,
`stepjepa.report` and `stepjepa.study` are functions, as for every other command; the packages of these names are imported
from: ``from stepjepa.study import spec``.
"""

from __future__ import annotations

from importlib import import_module
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

# Python makes a package an attribute of this one when it is first imported. That is now, so that it is not in the place of
# the function later.
for _name in ("inspect", "report", "study"):
    import_module(f"stepjepa.{_name}")
    globals().pop(_name, None)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
