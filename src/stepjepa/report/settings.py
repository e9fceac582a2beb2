"""The settings in which runs differ, and all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stepjepa.config.option import options_of, unread_options
from stepjepa.objectives.base import OBJECTIVES, find_objective, idle_options
from stepjepa.report.reading import table
from stepjepa.training.options import JEPAOptions, RunOptions, TrainerOptions

UNREAD = "-"
_VERSIONS = ("stepjepa", "torch", "transformers", "peft", "python", "source", "processes", "device", "git_commit")
_OWN = ("date", "command")  # differ from run to run


class Row(NamedTuple):
    """A setting: a cell for each run, and whether the cells differ."""

    name: str
    cells: list[str]
    differs: bool


def settings_table(settings: Sequence[Mapping[str, Any]]) -> tuple[list[Row], list[Row]]:
    """Settings that differ or were changed from their defaults, and all others; `UNREAD` where a run does not read one.

    Names of the runs' own folders, and options that decide no number of a run, never count as differing.
    """
    known = {**options_of(RunOptions), **options_of(JEPAOptions), **options_of(TrainerOptions)}
    unread = [_unread(one) for one in settings]
    names = sorted({name for one in settings for name in one})
    main, rest = list[Row](), list[Row]()
    for name in dict.fromkeys([*known, *names]):
        if all(_in_own_folder(name, one) for one in settings):
            continue
        cells = []
        for one, idle in zip(settings, unread, strict=True):
            cells.append(UNREAD if name in idle else plain(one[name]) if name in one else "")
        read = [cell for cell in cells if cell != UNREAD]
        differs = len(set(read)) > 1
        option = known.get(name)
        if not any(read) or (differs and option is not None and not option.identity):
            continue
        changed = option is not None and any(cell != plain(option.default) for cell in read)
        if differs or changed:
            main.append(Row(name, cells, differs))
        else:
            rest.append(Row(name, read[:1], False))
    return main, rest


def _unread(settings: Mapping[str, Any]) -> set[str]:
    """The options that a run with these settings does not read."""
    known = options_of(JEPAOptions)
    method = JEPAOptions(**{name: settings[name] for name in known if name in settings})
    unread = {option.name for option in unread_options(method, known)}
    objective = str(settings.get("objective"))
    if objective in OBJECTIVES:  # a user's own file is not imported
        unread |= idle_options(find_objective(objective)(method))
    return unread


def _in_own_folder(name: str, settings: Mapping[str, Any]) -> bool:
    return f"{settings.get(name)}/".startswith(f"{settings.get('output_dir', '/')}/")


def plain(value: object) -> str:
    """A setting in a cell."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return ", ".join(f"{name}={plain(one)}" for name, one in value.items()) or "none"
    if isinstance(value, list):
        separator = "; " if any(isinstance(one, dict) for one in value) else ", "
        return separator.join(map(plain, value)) or "none"
    return str(value)


def versions(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Versions by package, machine, date and command, by run."""
    flat = []
    of_machines: dict[str, None] = {}
    for record in records:
        machine = table(record, "machine")
        of_machines |= dict.fromkeys(machine)
        flat.append({**record, **machine})
    rows = []
    for name in dict.fromkeys([*_VERSIONS, *of_machines, *_OWN]):
        values = [one.get(name) for one in flat]
        cells = ["" if value is None else plain(value) for value in values]
        if any(cells):
            differs = len(set(cells)) > 1 and name not in _OWN
            rows.append(Row(name, cells, differs))
    return rows
