"""Running a study: what is to be done, in which order, and what is known afterwards.

Everything that is known lies in the run folders and the state, so a study that was killed goes on by being started again.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepjepa.errors import ConfigError
from stepjepa.study.executors import Executor, Handle, lifeline, make_executor
from stepjepa.study.grid import Run, all_runs, arm_runs, variant_runs
from stepjepa.study.identity import check_same, data_identity, study_identity
from stepjepa.study.leaks import leak_notes
from stepjepa.study.plan import check_folder, clear_folder, split_files, write_builtin, write_plan
from stepjepa.study.results import State, StudyRunFolder
from stepjepa.study.selection import choose_cell
from stepjepa.study.spec import Arm, Block, Study
from stepjepa.utils.files import LOCK, locked


@dataclass
class Item:
    """A run of the study and where it stands.

    Attributes:
        stages: that are wanted of it.
        handle: while it is being carried out.
        error: why it failed.
    """

    run: Run
    folder: StudyRunFolder
    stages: tuple[str, ...]
    handle: Handle | None = None
    error: str | None = None

    @property
    def open(self) -> list[str]:
        """The stages that are not done."""
        return [stage for stage in self.stages if self.folder.done(stage) is None]


@dataclass
class Outcome:
    """All runs of a study after it was carried out."""

    study: Study
    state: State
    items: list[Item]
    notes: list[str] = field(default_factory=list)

    @property
    def failed(self) -> list[Item]:
        """The runs that are not done: those that ended with an error and those that were not begun."""
        return [item for item in self.items if item.open or item.error is not None]


class StudyRun:
    """A study in its folder.

    Args:
        say: takes lines that tell how far it is.
    """

    def __init__(self, study: Study, say: Callable[[str], None]):
        self.study, self.say = study, say
        self.folder = study.output_dir
        self.files = {block.name: split_files(block, self.folder) for block in study.blocks}
        self.items: dict[Path, Item] = {}
        self.notes: list[str] = []

    def prepare(self, overwrite: bool) -> None:
        """Check that the folder holds nothing, or this very study; write the built-in data.

        Raises:
            ConfigError: it holds something else.
            DataError: a file of the data cannot be read.
        """
        if overwrite:
            clear_folder(self.folder)
        for block in self.study.blocks:
            write_builtin(block.data, self.folder)
        self.state = self._same_study(State(self.folder))
        for block in self.study.blocks:
            self.notes += leak_notes(block, self.files[block.name])
        for note in self.notes:
            self.say(f"note   {note}")

    def check(self) -> int:
        """As far as can be said without writing anything: refuse a folder that cannot be used; the runs finished in it.

        Raises:
            ConfigError: it holds something else.
        """
        check_folder(self.folder)
        state = State(self.folder)
        if state.identity is None:
            return 0
        self._same_study(state, settle=False)
        self.state = state
        self._plan(write=False)
        return sum(not item.open for item in self.items.values())

    def carry_out(self, executor: Executor) -> Outcome:
        """Do what is not done. One failed run does not stop the others."""
        active: list[Item] = []
        try:
            while True:
                self._plan()
                for item in self._ready(active)[: self.study.jobs - len(active)]:
                    item.handle = executor.start(item.folder, item.open)
                    active.append(item)
                if not active:
                    break
                active = self._finished(active, executor.pause)
        except BaseException:
            executor.stop()
            raise
        executor.stop()
        return Outcome(self.study, self.state, list(self.items.values()), self.notes)

    def _same_study(self, state: State, settle: bool = True) -> State:
        """The state, after a check that it is that of this study.

        Raises:
            ConfigError: what differs.
        """
        data = {block.name: data_identity(self.files[block.name], block.data.splits) for block in self.study.blocks}
        identity = json.loads(json.dumps(study_identity(self.study, data)))  # as it will be read again
        if state.identity is not None:
            check_same(self.folder, state.identity, identity)
        if settle:
            state.settle(identity)
        return state

    def _ready(self, active: Sequence[Item]) -> list[Item]:
        """Runs that can be begun: first all arms of the first seed, so that a part of a study is of use."""
        taken = {id(item) for item in active}
        ready = [item for item in self.items.values() if id(item) not in taken and item.error is None and item.open]
        seeds = {block.name: block.seeds for block in self.study.blocks}
        return sorted(ready, key=lambda item: seeds[item.run.block].index(item.run.seed))

    def _finished(self, active: list[Item], pause: float) -> list[Item]:
        """Wait until a run ends; those that still run."""
        while not any(item.handle is not None and item.handle.done() for item in active):
            time.sleep(pause)
        still = []
        for item in active:
            assert item.handle is not None
            if not item.handle.done():
                still.append(item)
                continue
            item.error, item.handle = item.handle.error(), None
            if item.error is None and item.open:
                item.error = f"it ended well, but its record {item.folder.record(item.open[0])} is missing"
            self.say(self._line(item))
        return still

    def _line(self, item: Item) -> str:
        done = sum(not one.open for one in self.items.values())
        place = f"[{done}/{self.total}]"
        if item.error is not None:
            return f"{place} {item.run.name}: FAILED: {item.error}"
        trained = item.folder.done("train") or {}
        seconds = trained.get("train_seconds")
        spent = "" if seconds is None else f"trained in {seconds:.0f} s"
        if "diverged" in trained:
            spent = f"diverged at step {trained['steps']}: {trained['diverged']}"
        # Nobody is to be led into watching the test split.
        scores = (item.folder.done("select") or {}).get("metrics", {})
        found = ", ".join(f"{name} {value:.4g}" for name, value in scores.items() if value is not None)
        return f"{place} {item.run.name}: {spent}" + (f"; validation: {found}" if found else "")

    # What is to be done

    def _plan(self, write: bool = True) -> None:
        """Take in every run that can be begun by now, choose where all that is needed is there, tidy up."""
        self.total = sum(1 for _ in all_runs(self.study))
        for block in self.study.blocks:
            for arm in block.arms:
                cell = self._choice(block, arm, write)
                if cell is not None:
                    for variant in arm.variants:
                        for run in variant_runs(block, arm, variant, cell):
                            self._add(run, block, ("train", *self._selected(block), "test"), write)
        if write:
            for item in self.items.values():
                self._tidy(item)

    def _choice(self, block: Block, arm: Arm, write: bool) -> Any:
        """The cell that the validation split chose, None while it cannot be said. Adds the arm's own runs."""
        only = len(arm.cells) == 1
        stages = ("train", *self._selected(block), *(("test",) if only else ()))
        items = [self._add(run, block, stages, write) for run in arm_runs(block, arm)]
        if only:
            return arm.cells[0]
        choice = self.state.choice(block.name, arm.name)
        if choice is None:
            if any(item.folder.done("select") is None for item in items) or not write:
                return None
            choice = choose_cell(block, arm, [(item.run, item.folder) for item in items])
            if choice["cell"] is None:
                for item in items:
                    item.error = (
                        item.error or "no cell of this arm has a finite value on the validation split for every seed"
                    )
                return None
            self.state.choose(block.name, arm.name, choice)
            self.say(f"{arm.name}: {choice['words']}")
        for item in items:
            if dict(item.run.cell) == choice["cell"]:
                item.stages = (*stages, "test")
        return choice["cell"]

    def _selected(self, block: Block) -> tuple[str, ...]:
        return ("select",) if self.files[block.name].get("select") else ()

    def _add(self, run: Run, block: Block, stages: tuple[str, ...], write: bool) -> Item:
        path = self.folder / run.folder
        if path not in self.items:
            item = Item(run, StudyRunFolder(path), stages)
            if write and item.open:
                write_plan(item.folder, run, block, self.files[block.name])
            self.items[path] = item
        return self.items[path]

    def _tidy(self, item: Item) -> None:
        """Note what was scored when; let go what nobody needs any more."""
        for split in ("select", "test"):
            record = item.folder.done(split)
            if record is not None:
                self.state.note_score(item.run.name, split, record)
        arm = next(b for b in self.study.blocks if b.name == item.run.block).arm(item.run.arm)
        undecided = not item.run.variant and len(arm.cells) > 1 and self.state.choice(item.run.block, arm.name) is None
        if item.handle is None and not item.open:
            item.folder.job.unlink(missing_ok=True)  # of a job that ended while no study looked
            item.folder.clear_checkpoints()
            if not self.study.keep_models and not undecided:
                item.folder.delete_weights()


def run_study(study: Study, say: Callable[[str], None], overwrite: bool = False) -> Outcome:
    """Carry a study out, or what is left of it.

    Raises:
        ConfigError, DataError: nothing was begun.
    """
    check_folder(study.output_dir)
    work = StudyRun(study, say)
    study.output_dir.mkdir(parents=True, exist_ok=True)
    with locked(study.output_dir / LOCK) as alone, lifeline() as pipe, ending_with_sigterm():
        if not alone:
            raise ConfigError(
                f"{study.output_dir}: another stepjepa study is at work in this folder; wait, or end that one"
            )
        work.prepare(overwrite)
        executor = make_executor(study.executor, study.jobs, study.output_dir / "jobs", study.slurm, pipe)
        return work.carry_out(executor)


@contextlib.contextmanager
def ending_with_sigterm() -> Iterator[None]:
    """Let SIGTERM end the study as Ctrl-C does: with its processes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
