"""Libraries that only some commands need and that come with an extra."""

from __future__ import annotations

import importlib
from typing import Any

from stepjepa.errors import ConfigError


def library(name: str, extra: str) -> Any:
    """The module `name`, which comes with ``pip install 'stepjepa[extra]'``.

    Raises:
        ConfigError: it, or something that it needs, is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        raise ConfigError(
            f"this needs {missing}, which is not installed; install it with: pip install 'stepjepa[{extra}]'"
        ) from None
