"""Write `src/stepjepa/keywords.pyi`, the options of every public function as a `TypedDict`: `python tools/keywords.py`.

The names and types come from the option dataclasses. Editors and type checkers read the file, Python never does; a test
compares it with what is written here.
"""

from __future__ import annotations

import inspect
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import stepjepa
from stepjepa.cli.main import COMMANDS
from stepjepa.config.option import Option, options_of
from stepjepa.config.values import is_class, union_members
from stepjepa.objectives.base import Objective
from stepjepa.parts import ONLY_TRAINERS
from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import ExampleOptions, LoopOptions, RunOptions

FILE = Path(__file__).resolve().parents[1] / "src" / "stepjepa" / "keywords.pyi"
HEAD = '''"""Options of the public functions by name, for editors and type checkers; `tools/keywords.py` writes this file."""

from typing import Any, Literal, TypedDict

from stepjepa.objectives.base import Objective
'''
# Options that are arguments with another name, and what only the command line reads.
NOT_KEYWORDS = {"check": {"file", "model_name"}, "inspect": {"file", "model_name"}}
ONLY_PRINTED = "json"


def functions() -> dict[str, dict[str, Option]]:
    """Every public function that takes options, with those that it takes by keyword; the loop's encoder last."""
    taken: dict[str, dict[str, Option]] = {}
    for name, command in COMMANDS.items():
        module, _, kind = command.options.partition(":")
        options = dict(options_of(getattr(import_module(f"stepjepa.{module}"), kind)))
        if name == "train":
            options = {**options_of(RunOptions), **options_of(JEPAConfig)}
        arguments = {*inspect.signature(getattr(stepjepa, name)).parameters, ONLY_PRINTED, *NOT_KEYWORDS.get(name, ())}
        taken[name] = {key: one for key, one in options.items() if key not in arguments}
    loop = options_of(LoopOptions)
    taken["encoder"] = {key: one for key, one in loop.items() if key not in ONLY_TRAINERS}
    return taken


def annotation(option: Option) -> str:
    """The type of an option as source; named values are literals, which an editor completes."""
    parts = [part for kind in union_members(option.hint) for part in _written(kind, option)]
    unique = [part for part in dict.fromkeys(parts) if part != "None"]
    return " | ".join([*unique, "None"] if "None" in parts else unique)


def _written(kind: Any, option: Option) -> list[str]:
    if kind is type(None):
        return ["None"]
    if kind is str and option.choices:
        return [_literal(option.choices), *(["str"] if option.own or option.folder else [])]
    if get_origin(kind) is Literal:
        return [_literal(get_args(kind))]
    if is_class(kind, Enum):  # of transformers, whose members are texts
        return ["str"]
    if is_class(kind, dict):
        return ["dict[str, Any]"]
    if is_class(kind, list):
        items = [part for item in get_args(kind) or (str,) for part in _written(item, option)]
        return [f"list[{' | '.join(items)}]"]
    return [kind.__name__ if kind in (bool, int, float, str, Objective) else "object"]


def _literal(values: Any) -> str:
    return f"Literal[{', '.join(f'{value!r}' for value in values)}]".replace("'", '"')


def text() -> str:
    """The file. What is the same in several functions, the options of examples, is written once."""
    shared = options_of(ExampleOptions)
    parts = [HEAD, _class("ExampleKeywords", "TypedDict", shared, "how rows become examples")]
    for name, options in functions().items():
        has_shared = all(options.get(key) == one for key, one in shared.items())
        own = {key: one for key, one in options.items() if key not in shared} if has_shared else options
        about = "stepjepa.parts.Encoder" if name == "encoder" else f"stepjepa.{name}"
        parts.append(
            _class(f"{name.capitalize()}Keywords", "ExampleKeywords" if has_shared else "TypedDict", own, f"`{about}`")
        )
    return "\n\n".join(parts)


def _class(name: str, base: str, options: dict[str, Option], about: str) -> str:
    lines = [f"    {key}: {annotation(one)}" for key, one in options.items()]
    return "\n".join([f"class {name}({base}, total=False):", f'    """Options of {about}."""', "", *lines, ""])


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
