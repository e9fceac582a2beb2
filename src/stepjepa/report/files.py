"""Files of runs, read with patience: old or unfinished ones lack some, and a broken one must not cost the rest."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from stepjepa.errors import ConfigError
from stepjepa.utils.files import parse_json


class Reader:
    """Reads files and keeps what was wrong with them.

    Attributes:
        problems: a sentence for every file that is there and could not be read.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    def json_object(self, path: Path) -> dict[str, Any]:
        """An object of JSON; empty where there is none."""
        return self._object(path, parse_json)

    def yaml_object(self, path: Path) -> dict[str, Any]:
        """A mapping of YAML; empty where there is none."""
        return self._object(path, yaml.safe_load)

    def json_lines(self, path: Path) -> list[dict[str, Any]]:
        """The objects of a file of JSON lines; none where there is no file."""
        found = self._parsed(path, lambda text: [parse_json(line) for line in text.splitlines() if line.strip()])
        return [row for row in found or [] if isinstance(row, dict)]

    def say(self, problem: str) -> None:
        """Keep a problem, once."""
        if problem not in self.problems:
            self.problems.append(problem)

    def _object(self, path: Path, parse: Any) -> dict[str, Any]:
        found = self._parsed(path, parse)
        if found is not None and not isinstance(found, dict):
            self.say(f"{path}: holds no object, and is left out")
        return found if isinstance(found, dict) else {}

    def _parsed(self, path: Path, parse: Any) -> Any:
        try:
            return parse(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            reason = " ".join(str(getattr(error, "strerror", None) or error).split())
            self.say(f"{path}: cannot be read ({reason}), and is left out")
            return None


def mapping(value: Any) -> dict[str, Any]:
    """`value` where it is a dict, an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def entries(value: Any) -> list[Any]:
    """`value` where it is a list, an empty one for anything else."""
    return value if isinstance(value, list) else []


def number(value: Any) -> float | None:
    """`value` where it is a finite number."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if fits else None


def labels(paths: Iterable[Path]) -> list[str]:
    """What folders are called: their last name, with as many in front of it as tell them apart.

    Raises:
        ConfigError: a folder is given twice.
    """
    parts = [path.resolve().parts for path in paths]
    twice = next((one for place, one in enumerate(parts) if one in parts[:place]), None)
    if twice is not None:
        raise ConfigError(f"{Path(*twice)}: is given twice")
    length = 1
    while len({one[-length:] for one in parts}) < len(parts):
        length += 1
    return ["/".join(one[-length:]).lstrip("/") or "/" for one in parts]
