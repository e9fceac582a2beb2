"""``stepjepa study`` and ``stepjepa demo``: a study from its options to its tables, and the order of its runs.

The whole state is in the study's files, so a study that was killed resumes when it is started again.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from stepjepa.config.option import Names, Values
from stepjepa.errors import ConfigError, StepJepaError, explaining, library
from stepjepa.study import folder as folders
from stepjepa.study.folder import StudyRunFolder
from stepjepa.study.records import (
    Item,
    KeptRuns,
    State,
    check_same,
    kept_runs,
    record_of,
    study_identity,
)
from stepjepa.study.results import Tables, write_results
from stepjepa.study.spec import (
    Arm,
    Block,
    DemoOptions,
    Run,
    Study,
    StudyOptions,
    all_runs,
    cell_name,
    describe,
    runs_of,
)
from stepjepa.study.stages import Executor, executor_of
from stepjepa.study.tree import recipe_lines
from stepjepa.training.options import TrainerOptions
from stepjepa.utils import terminal
from stepjepa.utils.files import LOCK, locked
from stepjepa.utils.text import text_table, written

_NAME = Names(StudyOptions, TrainerOptions)
_NO_CELL = "no cell of this arm has a finite value on the validation split for every seed"
Active = dict[Future[str | None], Item]


@dataclass(frozen=True)
class StudyResult:
    """The result of a study; its `str` is the final output of the command.

    Attributes:
        lines: verdicts, missing runs, and written files; or the requested list, of recipes or of runs.
        tables: (block, metric) -> table, in the order of the study's metrics; empty for a list.
        failed: whether a run failed, or was not done for a reason other than the time limit.
    """

    lines: tuple[str, ...]
    tables: Tables = field(default_factory=dict)
    failed: bool = False

    def __str__(self) -> str:
        return "\n".join(self.lines)


def study(options: StudyOptions, say: Callable[[str], None] = terminal.say) -> StudyResult:
    """Run or resume a study, or list the recipes (``recipes``) or its runs (``dry_run``).

    Args:
        say: receives a line of progress after each run.

    Raises:
        ConfigError, DataError: the study cannot be used; no run was started.
        RunError: the disk or the memory is full.
    """
    if options.recipes:
        return StudyResult(tuple(recipe_lines()))
    if not options.file:
        raise ConfigError(
            "no study given; write: stepjepa study study.yaml (stepjepa study --list shows recipes)"
        )
    # Loads torch, which the list above does not need.
    from stepjepa.study.reading import read_options

    read = read_options(options)
    for note in read.notes:
        say(f"note   {note}")
    if options.dry_run:
        return _listed(read, options)
    # Tables need statsmodels; a missing library should be noticed now, not hours later.
    library("statsmodels", "study")
    less_memory = f"{_NAME.jobs}, or {_NAME.per_device_train_batch_size} in the study"
    with explaining(less_memory, "run the same command again"):
        carried = run_study(read, options, say)
    tables, lines = carried.write_results()
    failed = any(item.error is not None or not carried.stopped for item in carried.failed)
    return StudyResult(("", *lines), tables, failed)


def _listed(study: Study, options: StudyOptions) -> StudyResult:
    """List the runs of a study without starting any."""
    folder = study.output_dir
    folders.check_folder(folder)
    state = State(folder)
    if state.identity is not None and not options.overwrite_output_dir:
        check_same(folder, state.identity, study_identity(study))
    kept = kept_runs(Path(options.records)) if options.records else {}

    def is_done(run: Run, stage: str) -> bool:
        recorded = run.name in kept and stage in kept[run.name]["at"]
        return recorded or StudyRunFolder(folder / run.folder).record(stage).is_file()

    return StudyResult(tuple(describe(study, is_done)))


def run_study(study: Study, options: StudyOptions, say: Callable[[str], None]) -> StudyRun:
    """Run or resume a study. Runs in the file ``records`` count as done; new ones are added to it.

    Raises:
        ConfigError, DataError: the study cannot be used; no run was started.
    """
    minutes, kept = options.stop_after, options.records
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    folder = study.output_dir
    folders.check_folder(folder)
    if kept and folder.resolve() in Path(kept).resolve().parents:
        raise ConfigError(
            f"--{_NAME.records} {kept}: the file is in {folder}, which the study writes; give a file elsewhere"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as locks:
        if not locks.enter_context(locked(folder / LOCK)):
            raise ConfigError(
                f"{folder}: another stepjepa study is running in this folder; wait, or end it"
            )
        if kept:
            Path(kept).parent.mkdir(parents=True, exist_ok=True)
            if not locks.enter_context(locked(Path(f"{kept}.lock"))):
                raise ConfigError(
                    f"--{_NAME.records} {kept}: another stepjepa study is writing to it; wait, or end it"
                )
        if options.overwrite_output_dir:
            folders.clear_folder(folder)
        for block in study.blocks:
            folders.write_builtin(block.data, folder)

        # No run starts before the folder and the records are known to belong to this study.
        state, identity = State(folder), study_identity(study)
        if state.identity is not None:
            check_same(folder, state.identity, identity)
        known = KeptRuns(Path(kept), study, identity) if kept else None
        state.take_over(identity)

        notes = list[str]()
        foreign = (
            sum(line["code"] != identity["code"] for line in known.runs.values()) if known else 0
        )
        if foreign:
            note = (
                f"{kept}: {foreign} of its runs were made with different code or package versions"
            )
            say(f"note   {note}")
            notes.append(note)
        run = StudyRun(study, state, say, notes, known)
        run.carry_out(executor_of(study), deadline)
        return run


@dataclass
class StudyRun:
    """The execution of a study in its folder.

    Attributes:
        say: receives lines of progress.
        notes: remarks on runs from a file of records.
        kept: runs that are not repeated, and the file to which new ones are added.
        stopped: whether the deadline ended it.
    """

    study: Study
    state: State
    say: Callable[[str], None]
    notes: list[str]
    kept: KeptRuns | None
    stopped: bool = False
    _items: dict[Path, Item] = field(default_factory=dict)

    @property
    def items(self) -> list[Item]:
        """The runs that could be started so far."""
        return list(self._items.values())

    @property
    def failed(self) -> list[Item]:
        """The runs without a result."""
        return [item for item in self.items if item.missing]

    def write_results(self) -> tuple[Tables, list[str]]:
        """See `stepjepa.study.results.write_results`."""
        return write_results(self.study, self.state, self.items, self.notes)

    def carry_out(self, executor: Executor, deadline: float | None = None) -> None:
        """Do everything that is not done yet, `jobs` runs at a time. A failed run does not stop the others.

        At the deadline (of `time.monotonic`) unfinished runs are stopped; they count as not run.
        """
        pool = ThreadPoolExecutor(self.study.jobs)
        active: Active = {}
        self._plan()
        # A run may have ended after an earlier study process was killed.
        self._keep(self.items)
        try:
            while True:
                running = list(active.values())
                waiting = [
                    item
                    for item in self.items
                    if item.error is None and item.todo and item not in running
                ]
                # All arms with the first seed run first, so that the arms of an unfinished study can be compared.
                waiting.sort(key=lambda item: item.run.turn)
                for item in waiting[: self.study.jobs - len(active)]:
                    active[pool.submit(_carry_out, executor, item, item.todo)] = item
                if not active:
                    return
                seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
                ended = wait(active, seconds, return_when=FIRST_COMPLETED).done
                if not ended:
                    self._end_at_deadline(executor, active)
                    return
                for future in ended:
                    item = active.pop(future)
                    item.error = future.result()
                    self._keep([item])
                    # This run may have been the last one that a choice of cells needs.
                    self._plan()
                    self.say(self._progress(item))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            _stop(executor, active)

    def _end_at_deadline(self, executor: Executor, active: Active) -> None:
        """Stop the active runs because the time is up. Runs that finish at this moment count as done."""
        self.stopped = True
        _stop(executor, active)
        self._keep([item for item in active.values() if not item.todo])
        self._plan()
        self.say(
            f"the time is up: {self._finished} of {self._total} runs are finished; the same command resumes"
        )

    def _keep(self, items: Sequence[Item]) -> None:
        """Add runs to the file of records, if there is one."""
        if self.kept is not None:
            self.kept.add([record_of(item, self.state) for item in items])

    @property
    def _finished(self) -> int:
        return sum(not item.todo for item in self.items)

    @cached_property
    def _total(self) -> int:
        return sum(1 for _ in all_runs(self.study))

    def _progress(self, item: Item) -> str:
        line = f"[{self._finished}/{self._total}] {item.run.name}: "
        if item.error is not None:
            return f"{line}FAILED: {item.error}"
        trained = item.folder.done("train") or {}
        if "diverged" in trained:
            return f"{line}diverged at step {trained['steps']}: {trained['diverged']}"
        # The test split is shown once, in the tables, so that nobody tunes on it while the study runs.
        scores = (item.folder.done("select") or {}).get("metrics", {})
        values = [f"; {name} {written(value, '.4g')}" for name, value in scores.items()]
        return f"{line}done{''.join(values)}"

    def _plan(self) -> None:
        """Add the runs that can start now, choose cells whose runs are complete, and remove files that finished runs no
        longer need."""
        for block in self.study.blocks:
            for arm in block.arms:
                self._plan_arm(block, arm)
        for item in self.items:
            if not item.todo:
                run = item.run
                undecided = (
                    run.arm.tuned and self.state.choice(run.block.name, run.arm.name) is None
                )
                # Until its arm's cell is chosen, a run may still have to be scored on the test split, unless it only tunes.
                item.folder.tidy(self.study.keep_models or (undecided and not run.only_tunes))

    def _plan_arm(self, block: Block, arm: Arm) -> None:
        first: tuple[str, ...] = ("train",)
        if "select" in block.data.paths(self.study.output_dir):
            first = ("train", "select")
        # If other seeds choose the cell, these runs need no score on the validation split.
        complete = ("train", "test") if block.tune_seeds else (*first, "test")
        own_seeds = arm.tuned and bool(block.tune_seeds)
        seeds = block.tune_seeds if own_seeds else block.seeds
        items = [
            self._add(run, first if arm.tuned else complete)
            for run in runs_of(block, arm, "", arm.cells, seeds)
        ]
        cell = self._choice(block, arm, items)
        if cell is None:
            return
        for item in items:
            if item.run.cell == cell and not item.run.only_tunes:
                item.stages = complete
        for variant in ("", *arm.variants) if own_seeds else arm.variants:
            for run in runs_of(block, arm, variant, [cell], block.seeds):
                self._add(run, complete)

    def _add(self, run: Run, stages: tuple[str, ...]) -> Item:
        path = self.study.output_dir / run.folder
        if path not in self._items:
            item = self._items[path] = Item(run, StudyRunFolder(path), stages)
            if item.todo:
                folders.write_plan(item.folder, run, self.study)
                if self.kept and run.name in self.kept.runs:
                    item.folder.restore(self.kept.runs[run.name])
        return self._items[path]

    def _choice(self, block: Block, arm: Arm, items: Sequence[Item]) -> Values | None:
        """The cell with the best mean over seeds on the validation split; among equals, the first one.

        None while any of `items`, the arm's runs, is missing. A cell that diverged at any seed is excluded. The means are
        saved with the choice.
        """
        if not arm.tuned:
            return arm.cells[0]
        before = self.state.choice(block.name, arm.name)
        if before is not None:
            return before["cell"]
        metric, highest = block.select
        values = defaultdict[str, list[Any]](list)
        at = ""
        for item in items:
            record = item.folder.done("select")
            if record is None:
                return None
            values[cell_name(item.run.cell)].append(record["metrics"].get(metric))
            at = max(at, record["at"])
        # `fmean` does not depend on the order of the seeds, so means of the same numbers are equal.
        means = {
            name: None if None in of_seeds else fmean(of_seeds) for name, of_seeds in values.items()
        }
        finite = {name: mean for name, mean in means.items() if mean is not None}
        if not finite:
            for item in items:
                item.error = item.error or _NO_CELL
            return None
        rule, extreme = ("highest", max) if highest else ("lowest", min)
        best = extreme(finite, key=lambda name: finite[name])
        cell = next(dict(cell) for cell in arm.cells if cell_name(cell) == best)
        words = f"the validation split chose {best} ({rule} {metric} of {len(means)})"
        choice = {"cell": cell, "means": means, "words": words, "at": at}
        self.state.choose(block.name, arm.name, choice)
        self.say(f"{arm.name}: {words}")
        return cell


def _carry_out(executor: Executor, item: Item, stages: Sequence[str]) -> str | None:
    """Carry out these stages of a run; return why one failed, or None if all are done.

    Only these are checked: a run that ends meanwhile may complete a choice of cells, which gives this one more stages.
    """
    error = executor.carry_out(item.folder, stages)
    if error is None and (lost := [stage for stage in stages if stage in item.todo]):
        error = f"the stage succeeded, but its record {item.folder.record(lost[0])} is missing"
    return error


def _stop(executor: Executor, active: Active) -> None:
    """Stop the active runs, and wait for them to end.

    A thread may be about to start the process of its next stage, so the request is repeated until all threads return.
    """
    while not all(future.done() for future in active):
        executor.stop()
        time.sleep(0.05)


@dataclass
class DemoResult:
    """The tables and the report of a demo; its `str` is the output of the command.

    Attributes:
        answer: the conclusion, in the words of the report.
        page: the report.
    """

    folder: Path
    tables: Tables
    answer: list[str] = field(default_factory=list)
    page: Path | None = None

    def __str__(self) -> str:
        tables = list(self.tables.values())
        heads = ["", *(arm.name for arm in tables[0].arms)]
        rows = [
            [table.metric, *(written(arm.summary.estimate, ".4f") for arm in table.arms)]
            for table in tables
        ]
        lines = text_table(heads, rows)
        for paragraph in self.answer:
            lines += ["", paragraph]
        return "\n".join([*lines, "", f"written to {self.folder}; the report: {self.page}"])


def demo(options: DemoOptions) -> DemoResult:
    """Generate the data, train and score all arms, and write the tables.

    Raises:
        ConfigError: the folder contains something other than a study.
        StepJepaError: an arm failed.
    """
    from stepjepa.study.reading import read_options

    asked = options.study
    study = read_options(asked)
    terminal.say(
        f"{study.title}; training logs: {study.output_dir}/runs/*/seed-{options.seed}/train.log"
    )
    carried = run_study(study, asked, terminal.say)
    tables, _ = carried.write_results()
    for item in carried.failed:
        raise StepJepaError(f"{item.run.name} failed: {item.error}")
    return DemoResult(study.output_dir, tables)
