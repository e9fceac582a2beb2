"""Running a study: what is to be done, in which order, and what is known afterwards.

Everything that is known is in the run folders and the state, so a study that was killed resumes when it is started again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepjepa.errors import ConfigError
from stepjepa.study.launch import Item, Job, Outcome, Processes, Submitit, failure
from stepjepa.study.options import StudyOptions
from stepjepa.study.plan import check_folder, clear_folder, shared_questions, write_builtin, write_plan
from stepjepa.study.records import State, StudyRunFolder, check_same, study_identity
from stepjepa.study.results import write_results
from stepjepa.study.spec import SPLITS, Arm, Block, Run, Study, Values, all_runs, cell_name, describe, runs_of
from stepjepa.study.tree import recipe_lines
from stepjepa.utils.failures import explaining
from stepjepa.utils.files import LOCK, locked
from stepjepa.utils.terminal import print_text

if TYPE_CHECKING:
    from stepjepa.study.table import Table


@dataclass(frozen=True)
class StudyResult:
    """What a study came to; `str` of it is what the command prints in the end.

    Attributes:
        lines: the verdicts, what is missing, and what was written; or what was asked for instead of a run.
        tables: (block, metric) -> table, each block's first metric first; none where nothing was run.
        failed: whether runs are missing.
    """

    lines: tuple[str, ...]
    tables: dict[tuple[str, str], Table] = field(default_factory=dict)
    failed: bool = False

    def __str__(self) -> str:
        return "\n".join(self.lines)


def study(options: StudyOptions, say: Callable[[str], None] = print_text) -> StudyResult:
    """Run a study, or what is left of it; or list the recipes (``recipes``) or the study's runs (``dry_run``).

    Args:
        say: takes lines that tell how far it is.

    Raises:
        ConfigError, DataError: nothing was begun.
        RunError: the disk or the memory is full.
    """
    if options.recipes:
        return StudyResult(tuple(recipe_lines()))
    if not options.file:
        raise ConfigError("no study given; write: stepjepa study study.yaml (stepjepa study --list shows recipes)")
    from stepjepa.study.reading import read_options

    read = read_options(options)
    for note in read.notes:
        say(f"note   {note}")
    if options.dry_run:
        check_folder(read.output_dir)
        state = State(read.output_dir)
        if state.identity is not None and not options.overwrite_output_dir:
            check_same(read.output_dir, state.identity, study_identity(read))
        return StudyResult(tuple(describe(read)))
    for name in ("statsmodels", "matplotlib"):
        if find_spec(name) is None:
            raise ConfigError(
                f"a study needs {name}, which is not installed; install it with: pip install 'stepjepa[study]'"
            )
    with explaining("jobs, or per_device_train_batch_size in the study", "start the same command again"):
        outcome = run_study(read, say, options.overwrite_output_dir)
    tables, lines = write_results(outcome)
    return StudyResult(("", *lines), tables, bool(outcome.failed))


def run_study(study: Study, say: Callable[[str], None], overwrite: bool = False) -> Outcome:
    """Carry a study out, or what is left of it.

    Raises:
        ConfigError, DataError: nothing was begun.
    """
    folder = study.output_dir
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK) as alone:
        if not alone:
            raise ConfigError(f"{folder}: another stepjepa study is running in this folder; wait, or end it")
        if overwrite:
            clear_folder(folder)
        for block in study.blocks:
            write_builtin(block.data, folder)
        state, identity = State(folder), study_identity(study)
        if state.identity is not None:
            check_same(folder, state.identity, identity)
        state.take_over(identity)
        notes = [note for block in study.blocks for note in shared_questions(block, folder)]
        for note in notes:
            say(f"note   {note}")
        local = study.executor == "processes"
        executor = Processes(study.jobs) if local else Submitit(study.executor, folder / "jobs", study.slurm)
        run = StudyRun(study, state, say)
        try:
            run.carry_out(executor)
        finally:
            executor.stop()
        return Outcome(study, state, list(run.items.values()), notes)


class StudyRun:
    """A study in its folder, which is being carried out; `say` takes lines that tell how far it is."""

    def __init__(self, study: Study, state: State, say: Callable[[str], None]):
        self.study, self.state, self.say = study, state, say
        self.items: dict[Path, Item] = {}
        self.total = sum(1 for _ in all_runs(study))

    def carry_out(self, executor: Processes | Submitit) -> None:
        """Do what is not done. One failed run does not stop the others."""
        active: list[tuple[Item, Job]] = []
        while True:
            self._plan()
            for item in self._ready()[: self.study.jobs - len(active)]:
                item.job = executor.start(item.folder, item.todo)
                active.append((item, item.job))
            if not active:
                return
            while not any(job.done() for _, job in active):
                time.sleep(executor.pause)
            for item, job in [(item, job) for item, job in active if job.done()]:
                item.error, item.job = failure(job), None
                if item.error is None and item.todo:
                    item.error = f"it ended well, but its record {item.folder.record(item.todo[0])} is missing"
                self.say(self._line(item))
            active = [(item, job) for item, job in active if item.job is not None]

    def _ready(self) -> list[Item]:
        """Runs that can be begun: first all arms of the first seed, so that a part of a study is of use."""
        ready = [item for item in self.items.values() if item.job is None and item.error is None and item.todo]
        return sorted(ready, key=lambda item: item.run.block.seeds.index(item.run.seed))

    def _line(self, item: Item) -> str:
        head = f"[{sum(not one.todo for one in self.items.values())}/{self.total}] {item.run.name}: "
        if item.error is not None:
            return f"{head}FAILED: {item.error}"
        trained = item.folder.done("train") or {}
        if "diverged" in trained:
            head += f"diverged at step {trained['steps']}: {trained['diverged']}"
        elif trained.get("train_seconds") is not None:
            head += f"trained in {trained['train_seconds']:.0f} s"
        # The test split is looked at once, at the end.
        scores = (item.folder.done("select") or {}).get("metrics", {})
        values = ", ".join(f"{name} {value:.4g}" for name, value in scores.items() if value is not None)
        return head + (f"; validation: {values}" if values else "")

    def _plan(self) -> None:
        """Add every run that can be begun by now, choose where all that is needed is there, tidy up."""
        for block in self.study.blocks:
            first = ("train", "select") if "select" in block.data.paths(self.study.output_dir) else ("train",)
            for arm in block.arms:
                items = [self._add(run, first if arm.tuned else (*first, "test")) for run in runs_of(block, arm)]
                cell = self._choice(block, arm, items)
                for item in items:
                    if item.run.cell == cell:
                        item.stages = (*first, "test")
                for variant in arm.variants if cell is not None else ():
                    for run in runs_of(block, arm, variant, [cell or {}]):
                        self._add(run, (*first, "test"))
        for item in self.items.values():
            for split in SPLITS[1:]:
                record = item.folder.done(split)
                if record is not None:
                    self.state.note_score(item.run.name, split, record["at"])
            block, arm = item.run.block, item.run.arm
            undecided = arm.tuned and self.state.choice(block.name, arm.name) is None
            if item.job is None and not item.todo:
                item.folder.tidy(self.study.keep_models or undecided)

    def _add(self, run: Run, stages: tuple[str, ...]) -> Item:
        path = self.study.output_dir / run.folder
        if path not in self.items:
            item = self.items[path] = Item(run, StudyRunFolder(path), stages)
            if item.todo:
                write_plan(item.folder, run, self.study.output_dir)
        return self.items[path]

    def _choice(self, block: Block, arm: Arm, items: Sequence[Item]) -> Values | None:
        """The cell that the validation split chose, None while that is not known."""
        choice = self.state.choice(block.name, arm.name)
        if not arm.tuned or choice is not None:
            return arm.cells[0] if choice is None else choice["cell"]
        if any(item.folder.done("select") is None for item in items):
            return None
        choice = choose_cell(block, arm, items)
        if choice["cell"] is not None:
            self.state.choose(block.name, arm.name, choice)
            self.say(f"{arm.name}: {choice['words']}")
        else:
            for item in items:
                item.error = (
                    item.error or "no cell of this arm has a finite value on the validation split for every seed"
                )
        return choice["cell"]


def choose_cell(block: Block, arm: Arm, items: Sequence[Item]) -> dict[str, Any]:
    """The cell with the best mean over the seeds; of equal ones the first. A cell that diverged for a seed is out.

    Args:
        items: all of the arm's, scored on the validation split.

    Returns:
        ``cell`` (None where none has a value), ``split``, ``metric``, ``rule``, ``means`` and ``values`` (cell -> seed ->
        value), and the choice in ``words``.
    """
    metric, highest = block.select
    values: dict[str, dict[str, float | None]] = {}
    for item in items:
        record = item.folder.done("select") or {"metrics": {}}
        values.setdefault(cell_name(item.run.cell), {})[str(item.run.seed)] = record["metrics"].get(metric)
    means: dict[str, float | None] = {}
    for name, by_seed in values.items():
        known = [value for value in by_seed.values() if value is not None]
        means[name] = sum(known) / len(known) if len(known) == len(by_seed) else None
    ranked = {name: mean if highest else -mean for name, mean in means.items() if mean is not None}
    best = max(ranked, key=lambda name: ranked[name]) if ranked else None
    rule = "highest" if highest else "lowest"
    return {
        "cell": next((dict(cell) for cell in arm.cells if cell_name(cell) == best), None),
        "split": "select",
        "metric": metric,
        "rule": rule,
        "means": means,
        "values": values,
        "words": f"the validation split chose {best or 'nothing'} ({rule} {metric} of {len(means)})",
    }
