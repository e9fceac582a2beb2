"""Notes on the options of a run: what has no effect, and what differs from the published scripts."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from pathlib import Path

from stepjepa.config.option import Names, unread_options
from stepjepa.data.sources import FILE_SUFFIXES, RowSource
from stepjepa.data.steps import names_steps
from stepjepa.errors import StepJepaError
from stepjepa.objectives.base import find_objective, objective_of
from stepjepa.training.options import JEPAOptions, without_effect
from stepjepa.training.run_options import RunOptions

_NAME = Names(RunOptions, JEPAOptions)
_ROWS = 20  # of each file, to see whether their answers have steps


def run_notes(run: RunOptions, options: JEPAOptions, given: Collection[str]) -> list[str]:
    """Lines to print before a run; `given` are the names of the options that were given."""
    lines = [*published_notes(run, options, given), *map(str, without_effect(options, given))]
    if _NAME.objective not in given and has_steps(run, options):
        lines.append(
            f"the data has steps and no objective is given: this trains {options.objective} with K = "
            f"{options.predictors}, whose views are question and answer; --step_jepa trains Step-JEPA, step 1 -> step 2"
        )
    return [*lines, *run_options_unread(run, given)]


def published_notes(run: RunOptions, options: JEPAOptions, given: Collection[str]) -> list[str]:
    """A line for each option that does not mean what it meant in the published scripts."""
    mask, ratio, objective = _NAME.additive_mask, _NAME.jepa_ratio, objective_of(options)
    lines = objective.notes(given)
    if run.additive_mask:
        lines.append(f"--{mask}: not needed; the packed forward computes the same numbers in one row")
    if ratio in given and not run.additive_mask and options.jepa_ratio < 1:
        lines.append(f"--{ratio}: used as given; the published script ignores it without --{mask}")
    if find_objective(options.objective).makes_pairs and not objective.makes_pairs and _NAME.lbd in given:
        lines.append(f"--{_NAME.lbd} 0: no pair is made, and the run trains exactly like objective {objective.name}")
    return lines


def run_options_unread(run: RunOptions, given: Collection[str]) -> list[str]:
    """A line for every option of data, evaluation and LoRA that the run does not read."""
    plain = RunOptions()
    changed = {name for name in given if hasattr(plain, name) and getattr(run, name) != getattr(plain, name)}
    lines = []
    for name, files in ((_NAME.dataset_split, run.train_file or []), (_NAME.eval_split, [run.eval_file])):
        local = [one for one in files if one and Path(one).suffix.lower() in FILE_SUFFIXES and Path(one).is_file()]
        if name in changed and any(files) and len(local) == len(files):
            lines.append(f"--{name} has no effect: the files have no splits")
    return [*lines, *map(str, unread_options(run, changed))]


def has_steps(run: RunOptions, options: JEPAOptions) -> bool:
    """Whether the first rows of the training data say that their answers have steps."""
    try:
        sources = [RowSource(name, run.dataset_split, options.streaming) for name in run.train_file or ()]
        return any(names_steps(row, options.steps_column) for rows in sources for _, row in islice(rows, _ROWS))
    except StepJepaError:  # the run reports it
        return False
