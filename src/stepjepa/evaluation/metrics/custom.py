"""A user's function as a metric."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal

from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.metrics.base import Metric, Verdict

Scorer = Callable[[str, str, dict[str, Any]], Any]


@dataclass(kw_only=True)
class CustomMetric(Metric):
    """Calls ``f(generated: str, reference: str, row: dict) -> bool | float``.

    Attributes:
        target: ``module:function``, or ``path/to/file.py:function``. A module is looked for where Python looks, then in the
            current folder.
    """

    target: str
    _function: Scorer = field(init=False, repr=False, compare=False)

    kind: ClassVar[Literal["accuracy", "score"]] = "score"
    is_custom: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._function = _load(self.target)
        self.name = self.target  # type: ignore[misc]

    def score(self, generated: str, row: Mapping[str, Any]) -> Verdict:
        """What the function returns: True and False are 1 and 0.

        Raises:
            DataError: the function failed, or returned no number from 0 to 1.
        """
        try:
            gold = self.reference(row).strip()
        except DataError:  # the function may look elsewhere, unless the column was named
            if self.reference_column is not None:
                raise
            gold = ""
        try:
            returned = self._function(generated, gold, dict(row))
        except Exception as error:
            raise DataError(f"metric {self.target}: {type(error).__name__}: {error}") from error
        try:
            value = float(returned)
        except (TypeError, ValueError):
            value = math.nan
        if isinstance(returned, str) or not 0 <= value <= 1:
            raise DataError(
                f"metric {self.target} must return a bool or a number from 0 to 1, it returned {returned!r}"
            )
        return Verdict(value, gold, generated.strip())


def _load(target: str) -> Scorer:
    source, _, name = target.rpartition(":")
    if not source or not name.isidentifier():
        raise ConfigError(f"metric {target!r} is no module:function")
    try:
        module = _from_file(Path(source)) if source.endswith(".py") else _from_name(source)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"metric {target}: importing {source} failed: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"metric {target}: {source} has no function {name}")
    return function


def _from_name(name: str) -> ModuleType:
    folder = str(Path.cwd())
    added = folder not in sys.path
    if added:
        sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(f"metric: no module {name} in Python's path or the current folder") from None
        raise
    finally:
        if added and folder in sys.path:
            sys.path.remove(folder)


def _from_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise ConfigError(f"metric: no file {file}")
    spec = importlib.util.spec_from_file_location(f"stepjepa_metric_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
