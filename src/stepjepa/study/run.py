"""Running a study: what is to be done, where it is carried out, in which order, and what is known afterwards.

Everything that is known is in the run folders and the state, so a study that was killed resumes when it is started again.
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, cast

from stepjepa.config.option import Names
from stepjepa.errors import ConfigError, StepJepaError, said
from stepjepa.study import records, stages
from stepjepa.study.records import Item, KeptRuns, State, StudyRunFolder
from stepjepa.study.results import Table, record_of, write_results
from stepjepa.study.spec import (
    Arm,
    Block,
    Run,
    Study,
    StudyOptions,
    Values,
    all_runs,
    cell_name,
    describe,
    runs_of,
)  # fmt: skip
from stepjepa.study.tree import recipe_lines
from stepjepa.training.run_options import TrainerOptions
from stepjepa.utils import terminal
from stepjepa.utils.failures import explaining, library
from stepjepa.utils.files import LOCK, locked
from stepjepa.utils.ray import RETRIES, connect, enter, plain_errors
from stepjepa.utils.text import one_line

_NAME = Names(StudyOptions, TrainerOptions)
# Parameters of submitit that all its executors share, and short names of a study's file; any other is SLURM's.
_SHARED = {"gpus": "gpus_per_node", "cpus": "cpus_per_task"}
_SHARED |= {n: n for n in ("timeout_min", "mem_gb", "gpus_per_node", "cpus_per_task", "stderr_to_stdout", "name")}
_OF_RAY = {"cpus": "num_cpus", "gpus": "num_gpus", "retries": "max_retries"}
_ALIVE = ("PENDING", "RUNNING", "REQUEUED", "COMPLETING", "CONFIGURING", "SUSPENDED", "RESIZING")


@dataclass(frozen=True)
class StudyResult:
    """What a study came to; `str` of it is what the command prints in the end.

    Attributes:
        lines: the verdicts, what is missing, and what was written; or what was asked for instead of a run.
        tables: (block, metric) -> table, each block's first metric first; none where nothing was run.
    """

    lines: tuple[str, ...]
    tables: dict[tuple[str, str], Table] = field(default_factory=dict)
    failed: bool = False

    def __str__(self) -> str:
        return "\n".join(self.lines)


def study(options: StudyOptions, say: Callable[[str], None] = terminal.say) -> StudyResult:
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
        records.check_folder(read.output_dir)
        state = State(read.output_dir)
        if state.identity is not None and not options.overwrite_output_dir:
            records.check_same(read.output_dir, state.identity, records.study_identity(read))
        kept = records.kept_runs(Path(options.records)) if options.records else {}
        return StudyResult(tuple(describe(read, {name for name, one in kept.items() if "test" in one["at"]})))
    for name in ("statsmodels", "matplotlib"):
        library(name, "study")  # before the work, whose results could not be written
    less_memory = f"{_NAME.jobs}, or {_NAME.per_device_train_batch_size} in the study"
    with explaining(less_memory, "start the same command again"):
        carried = run_study(read, say, options.overwrite_output_dir, options.records, options.stop_after)
    tables, lines = write_results(carried)
    failed = [item for item in carried.failed if item.error is not None or not carried.stopped]
    return StudyResult(("", *lines), tables, bool(failed))


# Where runs are carried out


class Processes:
    """Carries runs out on this machine, each with its share of the cores and a GPU for each of its `processes`."""

    def __init__(self, jobs: int, processes: int = 1):
        self._devices: queue.Queue[list[str]] = queue.Queue()
        devices = cycle(visible_devices())
        for _ in range(jobs):
            self._devices.put([*dict.fromkeys(islice(devices, processes))])
        threads = os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // (jobs * processes))))
        self._environment = {"OMP_NUM_THREADS": threads}

    def carry_out(self, run: StudyRunFolder, todo: Sequence[str]) -> str | None:
        """See `stages.carry_out`."""
        devices = self._devices.get()
        try:
            chosen = {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {}
            return stages.carry_out(str(run.path), todo, {**self._environment, **chosen})
        finally:
            self._devices.put(devices)

    def stop(self) -> None:
        """End the processes."""
        stages.kill_all()


class Submitit:
    """Carries runs out as jobs of SLURM, or of submitit's local executor, which does the same without a cluster.

    Args:
        cluster: ``slurm``, whose jobs outlive the study, or ``local``.
        folder: for the jobs' scripts and their own logs; all nodes must see it.
        parameters: of the jobs, see `slurm_parameters`.

    Raises:
        ConfigError: submitit or SLURM is not there, or a parameter cannot be used.
    """

    def __init__(self, cluster: str, folder: Path, parameters: Mapping[str, Any]):
        self._submitit = library("submitit", "study")
        self._cluster, self._folder = cluster, folder
        self._stopped, self._alone = threading.Event(), threading.Lock()  # submitit is made for one thread
        try:
            self._executor = self._submitit.AutoExecutor(folder=folder, cluster=cluster)
            self._executor.update_parameters(**slurm_parameters(parameters))
        except (RuntimeError, ValueError, TypeError, NameError) as error:
            raise ConfigError(f"slurm: {said(error, lines=1)}") from None
        # submitit asks sacct whether a job has ended, and without an answer waits for ever.
        if cluster == "slurm" and subprocess.run(["sh", "-c", "sacct"], capture_output=True, check=False).returncode:
            raise ConfigError("slurm: sacct fails here; a study needs SLURM's accounting to see which jobs have ended")

    def carry_out(self, run: StudyRunFolder, todo: Sequence[str]) -> str | None:
        """Wait for the run's job, which may be one that an earlier start has left in the queue; why it failed.

        Raises:
            StepJepaError: the job could not be submitted.
        """
        with self._alone:
            job = self._still_running(run) or self._submit(run, todo)
        while not self._ended(job):
            if self._stopped.wait(5.0 if self._cluster == "slurm" else 0.5):  # each look is one at a shared file system
                if self._cluster == "local":
                    job.cancel()
                return "the study was interrupted"
        try:
            reason = job.result()
        except Exception as error:  # submitit raises its own kinds: a job that was cancelled, a lost node
            reason = f"{type(error).__name__}, the state of the job is {job.state}"
        return reason and f"job {job.job_id}: {reason} (the job's own log: {job.paths.stderr})"

    def _ended(self, job: Any) -> bool:
        with self._alone:
            return job.done()

    def _submit(self, run: StudyRunFolder, todo: Sequence[str]) -> Any:
        ends_with = str(os.getpid()) if self._cluster == "local" else ""
        try:
            job = self._executor.submit(Job(), str(run.path.resolve()), list(todo), ends_with)
        except Exception as error:  # whatever sbatch and the file system have to say
            raise StepJepaError(f"{run.path}: the job could not be submitted: {said(error)}") from None
        records.write_record(run.job, {"cluster": self._cluster, "id": job.job_id})
        return job

    def _still_running(self, run: StudyRunFolder) -> Any:
        """The run's job of an earlier start, if SLURM still has it."""
        before = records.read_record(run.job)
        if before is None or {before["cluster"], self._cluster} != {"slurm"}:
            return None
        job = self._submitit.SlurmJob(folder=self._folder, job_id=before["id"])
        return job if job.state.split(" ")[0] in _ALIVE and not job.done() else None

    def stop(self) -> None:
        """Wait no longer, and end the jobs of submitit's local executor; those of SLURM go on."""
        self._stopped.set()


class RayTasks:
    """Carries runs out as tasks of a Ray cluster, which end with the study; one whose process is lost is begun again.

    Args:
        options: of the tasks: `cpus`, `gpus`, `retries`, or others by Ray's names.

    Raises:
        ConfigError: Ray or an option cannot be used.
    """

    def __init__(self, options: Mapping[str, Any]):
        self._ray, self._tasks = connect(), set[Any]()
        named = {"max_retries": RETRIES, **{_OF_RAY.get(name, name): value for name, value in options.items()}}
        try:
            self._task = self._ray.remote(carry_out_task).options(**named)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"ray: {said(error, lines=1)}") from None

    def carry_out(self, run: StudyRunFolder, todo: Sequence[str]) -> str | None:
        """Wait for the run's task; why it failed."""
        task = self._task.remote(os.getcwd(), str(run.path.resolve()), list(todo))
        self._tasks.add(task)
        try:
            with plain_errors():
                return cast("str | None", self._ray.get(task))
        except Exception as error:  # of the run alone: the others go on
            return one_line(said(error), 400)
        finally:
            self._tasks.discard(task)

    def stop(self) -> None:
        """End the tasks, and so their processes."""
        for task in [*self._tasks]:
            self._ray.cancel(task, force=True)


Executor = Processes | Submitit | RayTasks


def slurm_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """submitit's parameters for those of a study's file, a day for each job unless it says otherwise."""
    named = {_SHARED.get(name, f"slurm_{name.removeprefix('slurm_')}"): value for name, value in given.items()}
    return {"timeout_min": 24 * 60, **named}  # slurm_time wins over it; the local executor knows it alone


class Job:
    """`stages.carry_out` in a job of submitit, put back into the queue at its time limit or when preempted."""

    def __call__(self, folder: str, todo: Sequence[str], ends_with: str) -> str | None:
        """Why the run failed; the job ends with the process `ends_with`, the study, if one is named."""
        stages.end_with(ends_with)
        try:
            return stages.carry_out(folder, todo, {stages.ENDS_WITH: ends_with})
        except Exception as error:  # submitit's own, too: a job that may not go back into the queue once more
            traceback.print_exc()
            return one_line(said(error), 400)

    def checkpoint(self, *arguments: object) -> object:
        """The same work once more: stages that have their record are not repeated, training resumes from its checkpoint."""
        return library("submitit", "study").helpers.DelayedSubmission(self, *arguments)


def carry_out_task(working: str, folder: str, todo: Sequence[str]) -> str | None:
    """`stages.carry_out` in a task of Ray, with which its processes end."""
    enter(working)
    return stages.carry_out(folder, todo, {})


def visible_devices() -> list[str]:
    """The CUDA devices that runs are shared out to, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [device for device in named.split(",") if device]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


# What is carried out


def run_study(
    study: Study,
    say: Callable[[str], None],
    overwrite: bool = False,
    kept: str | None = None,
    stop_after: float | None = None,
) -> StudyRun:
    """Carry a study out, or what is left of it; runs in the file `kept` count as carried out, and it gets the others.

    Args:
        stop_after: minutes, see `StudyRun.carry_out`.

    Raises:
        ConfigError, DataError: nothing was begun.
    """
    deadline = None if stop_after is None else time.monotonic() + 60 * stop_after
    folder = study.output_dir
    records.check_folder(folder)
    if kept and folder.resolve() in Path(kept).resolve().parents:
        raise ConfigError(f"--{_NAME.records} {kept}: lies in {folder}, which the study writes; give a file elsewhere")
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as locks:
        if not locks.enter_context(locked(folder / LOCK)):
            raise ConfigError(f"{folder}: another stepjepa study is running in this folder; wait, or end it")
        if kept:
            Path(kept).parent.mkdir(parents=True, exist_ok=True)
            if not locks.enter_context(locked(Path(f"{kept}.lock"))):
                raise ConfigError(f"--{_NAME.records} {kept}: another stepjepa study writes to it; wait, or end it")
        if overwrite:
            records.clear_folder(folder)
        for block in study.blocks:
            records.write_builtin(block.data, folder)
        state, identity = State(folder), records.study_identity(study)
        if state.identity is not None:
            records.check_same(folder, state.identity, identity)
        known = records.KeptRuns(Path(kept), study, identity) if kept else None
        state.take_over(identity)
        notes = [note for block in study.blocks for note in records.shared_questions(block, folder)]
        if known and (other := sum(one["code"] != identity["code"] for one in known.runs.values())):
            notes.append(f"{kept}: {other} of its runs were made by other code or versions")
        for note in notes:
            say(f"note   {note}")
        executor: Executor
        if study.executor == "ray":
            executor = RayTasks(study.ray)
        elif study.executor != "processes":
            executor = Submitit(study.executor, folder / "jobs", study.slurm)
        else:
            executor = Processes(study.jobs, study.processes_per_run)
        run = StudyRun(study, state, say, notes, known)
        run.carry_out(executor, deadline)
        return run


class StudyRun:
    """A study in its folder, which is or was carried out; `say` takes lines on its progress, `notes` are on its data.

    Runs that `kept` has are not carried out again, and it gets those that end.
    """

    def __init__(self, study: Study, state: State, say: Callable[[str], None], notes: list[str], kept: KeptRuns | None):
        self.study, self.state, self.say, self.notes, self._kept = study, state, say, notes, kept
        self._items: dict[Path, Item] = {}
        self._arms: dict[tuple[str, str], list[Item]] = {}  # of each block: its runs
        self._finished: set[Path] = set()
        self.stopped = False  # because its time was up
        self._total = sum(1 for _ in all_runs(study))

    @property
    def items(self) -> list[Item]:
        """Its runs that could be begun by now."""
        return list(self._items.values())

    @property
    def failed(self) -> list[Item]:
        """The runs that are not done: those that ended with an error and those that were not begun."""
        return [item for item in self.items if item.todo or item.error is not None]

    def carry_out(self, executor: Executor, deadline: float | None = None) -> None:
        """Do what is not done, `jobs` runs at a time. One failed run does not stop the others.

        At the deadline (of `time.monotonic`) the runs that have not finished are ended; they count as not run.
        """
        pool, active = ThreadPoolExecutor(self.study.jobs), dict[Future[str | None], Item]()
        new = [item for block in self.study.blocks for arm in block.arms for item in self._plan(block, arm)]
        self._keep(self.items)  # what ended while no study was there to see it
        ready: list[Item] = []
        try:
            while True:
                if new:  # first all arms of the first seed, so that a part of a study is of use
                    ready, new = sorted(ready + new, key=lambda item: item.run.priority), []
                while ready and len(active) < self.study.jobs:
                    item = ready.pop(0)
                    active[pool.submit(executor.carry_out, item.folder, item.todo)] = item
                if not active:
                    return
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                ended = wait(active, left, return_when=FIRST_COMPLETED).done
                if not ended:
                    self._stop(executor, active)
                    return
                for future in ended:
                    item = active.pop(future)
                    item.error = future.result()
                    if item.error is None and item.todo:
                        item.error = f"it ended well, but its record {item.folder.record(item.todo[0])} is missing"
                    self._keep([item], failed=item.error is not None)
                    new += self._settle(item)
                    self.say(self._line(item))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            while not all(future.done() for future in active):
                executor.stop()
                time.sleep(0.05)

    def _stop(self, executor: Executor, active: Mapping[Future[str | None], Item]) -> None:
        """End the runs that are active because the time is up; those that finish in this moment count."""
        self.stopped = True
        while not all(future.done() for future in active):
            executor.stop()
            time.sleep(0.05)
        finished = [item for item in active.values() if not item.todo]
        for item in finished:
            self._tidy(item)
        self._keep(finished)
        self.say(f"the time is up: {len(self._finished)} of {self._total} runs are finished; the same command resumes")

    def _keep(self, items: Sequence[Item], failed: bool = False) -> None:
        """Add runs to the file of records, those that `failed` or of which the file lacks a stage."""
        kept = self._kept
        if kept is None:
            return
        found = (record_of(self, item) for item in items)
        new = [one for one in found if failed or one.at.keys() - kept.runs.get(one.run, {"at": {}})["at"].keys()]
        if new:
            kept.add([{**asdict(one), "model": None} for one in new])  # the folder is of this machine

    def _line(self, item: Item) -> str:
        head = f"[{len(self._finished)}/{self._total}] {item.run.name}: "
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

    def _plan(self, block: Block, arm: Arm) -> list[Item]:
        """Add the runs of an arm, choose its cell where all that is needed is there, and give what can be begun by now."""
        first = ("train", "select") if "select" in block.data.paths(self.study.output_dir) else ("train",)
        seeds = block.tune_seeds if arm.tuned and block.tune_seeds else block.seeds
        # Where the choice has seeds of its own, the others have nothing to do with the validation split.
        complete = ("train", "test") if block.tune_seeds else (*first, "test")
        items = [self._add(run, first if arm.tuned else complete) for run in runs_of(block, arm, seeds=seeds)]
        cell = self._choice(block, arm, items)
        for item in items:
            if item.run.cell == cell and not item.run.only_tunes:
                item.stages = complete
        rows = [*(("",) if seeds is not block.seeds else ()), *arm.variants] if cell is not None else []
        for row in rows:
            items += [self._add(run, complete) for run in runs_of(block, arm, row, [cell or {}])]
        self._arms[block.name, arm.name] = items
        for item in items:
            self._tidy(item)
        return [item for item in items if item.error is None and item.todo]

    def _settle(self, item: Item) -> list[Item]:
        """Tidy up after a run; the runs that can be begun now because it was the last one that a choice needed."""
        block, arm = item.run.block, item.run.arm
        undecided = arm.tuned and self.state.choice(block.name, arm.name) is None
        if undecided and not any(one.todo for one in self._arms[block.name, arm.name]):
            return self._plan(block, arm)
        self._tidy(item)
        return []

    def _tidy(self, item: Item) -> None:
        if item.todo:
            self._finished.discard(item.folder.path)
            return
        undecided = item.run.arm.tuned and self.state.choice(item.run.block.name, item.run.arm.name) is None
        self._finished.add(item.folder.path)
        # Of a run that only serves the choice nothing more is scored.
        item.folder.tidy(self.study.keep_models or (undecided and not item.run.only_tunes))

    def _add(self, run: Run, wanted: tuple[str, ...]) -> Item:
        path = self.study.output_dir / run.folder
        if path not in self._items:
            item = self._items[path] = Item(run, StudyRunFolder(path), wanted)
            if item.todo:
                records.write_plan(item.folder, run, self.study)
                if self._kept and run.name in self._kept.runs:
                    item.folder.restore(self._kept.runs[run.name])
        return self._items[path]

    def _choice(self, block: Block, arm: Arm, items: Sequence[Item]) -> Values | None:
        """The cell with the best mean over the seeds on the validation split, of equal ones the first; None while one of the
        arm's runs, `items`, is missing. A cell that diverged for a seed is out. What it was made from is kept with it.
        """
        before = self.state.choice(block.name, arm.name)
        if not arm.tuned or before is not None:
            return arm.cells[0] if before is None else before["cell"]
        metric, highest = block.select
        values: dict[str, dict[str, float | None]] = {}
        for item in items:
            record = item.folder.done("select")
            if record is None:
                return None
            values.setdefault(cell_name(item.run.cell), {})[str(item.run.seed)] = record["metrics"].get(metric)
        means: dict[str, float | None] = {}
        for name, by_seed in values.items():
            known = [value for value in by_seed.values() if value is not None]
            means[name] = sum(known) / len(known) if len(known) == len(by_seed) else None
        # Rounded, so that means of the same numbers in another order are equal.
        ranked = {name: round(mean if highest else -mean, 12) for name, mean in means.items() if mean is not None}
        if not ranked:
            for item in items:
                item.error = (
                    item.error or "no cell of this arm has a finite value on the validation split for every seed"
                )
            return None
        at = max((item.folder.done("select") or {})["at"] for item in items)
        best, rule = max(ranked, key=lambda name: ranked[name]), "highest" if highest else "lowest"
        cell = next(dict(cell) for cell in arm.cells if cell_name(cell) == best)
        words = f"the validation split chose {best} ({rule} {metric} of {len(means)})"
        choice = {"cell": cell, "metric": metric, "rule": rule, "means": means, "values": values, "words": words}
        self.state.choose(block.name, arm.name, {**choice, "at": at})
        self.say(f"{arm.name}: {words}")
        return cell
