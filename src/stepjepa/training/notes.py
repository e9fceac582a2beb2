"""Notes on the options of a run: what has no effect, and what differs from the published scripts."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from pathlib import Path

from stepjepa.config.option import unread_options
from stepjepa.data.files import FILE_SUFFIXES
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import names_steps
from stepjepa.errors import StepJepaError
from stepjepa.training.options import JEPAOptions, without_effect
from stepjepa.training.run_options import RunOptions

_ROWS = 20  # of each file, to see whether their answers have steps


def run_notes(run: RunOptions, options: JEPAOptions, given: Collection[str]) -> list[str]:
    """Lines to print before a run; `given` are the names of the options that were given."""
    lines = [*published_notes(run, options, given), *map(str, without_effect(options, given))]
    if "objective" not in given and has_steps(run, options):
        lines.append(
            f"the data has steps and no objective is given: this trains {options.objective} with K = "
            f"{options.predictors}, whose views are question and answer; --step_jepa trains Step-JEPA, step 1 -> step 2"
        )
    return [*lines, *run_options_unread(run, given)]


def published_notes(run: RunOptions, options: JEPAOptions, given: Collection[str]) -> list[str]:
    """A line for each option that does not mean what it meant in the published scripts."""
    lines = []
    if run.additive_mask:
        lines.append("--additive_mask: not needed; the packed forward computes the same numbers in one row")
    if options.objective == "llm_jepa" and "last_token" in given and "views" not in given and options.uses_pairs:
        lines.append("--last_token: views are read in context; the published form is --views standalone")
    if "jepa_ratio" in given and not run.additive_mask and options.jepa_ratio < 1:
        lines.append("--jepa_ratio: used as given; the published script ignores it without --additive_mask")
    if options.objective != "regular" and options.lbd == 0 and "lbd" in given:
        lines.append("--lbd 0: no pair is made, and the run trains exactly like objective regular")
    return lines


def run_options_unread(run: RunOptions, given: Collection[str]) -> list[str]:
    """A line for every option of data, evaluation and LoRA that the run does not read."""
    plain = RunOptions()
    changed = {name for name in given if hasattr(plain, name) and getattr(run, name) != getattr(plain, name)}
    lines = []
    for name, files in (("dataset_split", run.train_file or []), ("eval_split", [run.eval_file])):
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
