"""Train language models with joint-embedding predictive objectives (JEPA).

Importing the package does not load torch: each public name is imported from its module on first use. `stepjepa.inspect`,
`stepjepa.report` and `stepjepa.study` are functions, like those of all other commands; the packages with the same names can
still be imported from, as in ``from stepjepa.study import spec``.
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

# Importing a subpackage sets it as an attribute of this package. It happens here, where the attribute is removed again, so
# that a later import does not hide the function of the same name.
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
