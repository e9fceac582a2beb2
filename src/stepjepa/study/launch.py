"""How runs are carried out: in processes of this machine, or in jobs of SLURM through submitit (extra ``study``).

A run has two stages, training and scoring, each in a process of its own with a log file. `carry_out` does them, in a thread
of the study or in a job. The processes end with the study, also where that is killed: it holds a lock on a file, and they
wait for that lock.

``python -m stepjepa.study.launch train ...`` is such a process for ``stepjepa train ...``; ``score FOLDER SPLIT ...`` scores
a run, and ``demo ARM FOLDER`` is an arm of the demo.
"""

from __future__ import annotations

import contextlib
import os
import queue
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stepjepa.errors import ConfigError, StepJepaError
from stepjepa.study.records import State, StudyRunFolder, read_record, write_record
from stepjepa.study.spec import Run, Study
from stepjepa.training.run_folder import BROKEN, recorded_steps
from stepjepa.utils.failures import library
from stepjepa.utils.files import LOCK, locked, no_links
from stepjepa.utils.terminal import print_error

# Names the file that the study holds locked as long as it lives.
_LIFELINE = "STEPJEPA_ENDS_WITH"
# Parameters of submitit that all its executors share, and short names of a study's file; any other is SLURM's.
_SHARED = {
    name: name for name in ("timeout_min", "mem_gb", "gpus_per_node", "cpus_per_task", "stderr_to_stdout", "name")
}
_SHARED |= {"gpus": "gpus_per_node", "cpus": "cpus_per_task"}
_ALIVE = ("PENDING", "RUNNING", "REQUEUED", "COMPLETING", "CONFIGURING", "SUSPENDED", "RESIZING")


class StageFailed(StepJepaError):
    """A stage of a run failed; the message holds the last lines of its log."""


class Lifeline:
    """A file that this process holds locked until `end`, or until it dies: `watch` waits for that."""

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="stepjepa-study-")  # noqa: SIM115 (held open until `end`)
        self.path = ""
        with contextlib.suppress(ImportError):  # a system without such locks: nobody watches
            import fcntl

            fcntl.flock(self._file, fcntl.LOCK_EX)
            self.path = self._file.name

    def end(self) -> None:
        """End all processes that watch."""
        self._file.close()


def watch(lifeline: str | None) -> None:
    """Kill this process, and those that it started, once the lifeline is released; None or "" watches nothing."""
    if lifeline:
        threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _end_with(lifeline: str) -> None:
    import fcntl

    with contextlib.suppress(OSError), open(lifeline) as file:  # where the file is gone, so is the study
        fcntl.flock(file, fcntl.LOCK_SH)
    if os.getpgid(0) == os.getpid():  # each process of a study leads a group of its own
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


class Job(Protocol):
    """A run that is being carried out: a future, or a job of submitit."""

    def done(self) -> bool:
        """Whether it has ended, well or not."""

    def result(self) -> str | None:
        """Why it failed, None where it did not; or an error of its own. Called once it is done."""


class Processes:
    """Runs in threads of the study, `jobs` at a time, whose stages are processes of this machine.

    Attributes:
        pause: seconds between two looks at what has ended.
    """

    pause = 0.1

    def __init__(self, jobs: int):
        self._lifeline = Lifeline()
        self._pool = ThreadPoolExecutor(jobs, thread_name_prefix="run")
        self._devices: queue.Queue[str | None] = queue.Queue()
        devices: Sequence[str | None] = visible_devices() or [None]
        for number in range(jobs):
            self._devices.put(devices[number % len(devices)])
        threads = os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
        self._environment = {_LIFELINE: self._lifeline.path, "OMP_NUM_THREADS": threads}

    def start(self, run: StudyRunFolder, stages: Sequence[str]) -> Job:
        """Begin to carry a run out; it waits until one of the jobs is free."""
        return self._pool.submit(self._carry_out, str(run.path), stages)

    def _carry_out(self, folder: str, stages: Sequence[str]) -> str | None:
        device = self._devices.get()  # one GPU for each run
        try:
            chosen = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
            return carry_out(folder, stages, {**self._environment, **chosen})
        finally:
            self._devices.put(device)

    def stop(self) -> None:
        """End the processes, and begin no more runs."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._lifeline.end()
        self._pool.shutdown(wait=True)


class Submitit:
    """Runs as jobs of SLURM, or of submitit's local executor, which does the same without a cluster.

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
        self.pause = 5.0 if cluster == "slurm" else 0.5  # each look is one at a shared file system
        try:
            self._executor = self._submitit.AutoExecutor(folder=folder, cluster=cluster)
            self._executor.update_parameters(**slurm_parameters(parameters))
        except (RuntimeError, ValueError, TypeError, NameError) as error:
            raise ConfigError(f"slurm: {str(error).splitlines()[0]}") from None
        self._lifeline = Lifeline() if cluster == "local" else None

    def start(self, run: StudyRunFolder, stages: Sequence[str]) -> Job:
        """Begin to carry a run out; a job that an earlier start has left in the queue is taken up again.

        Raises:
            StepJepaError: the job could not be submitted.
        """
        job = self._still_running(run)
        if job is None:
            lifeline = self._lifeline.path if self._lifeline else None
            try:
                job = self._executor.submit(carry_out_job, str(run.path.resolve()), list(stages), lifeline)
            except Exception as error:  # whatever sbatch and the file system have to say
                reason = " ".join(str(error).split())
                raise StepJepaError(f"{run.path}: the job could not be submitted: {reason}") from None
            write_record(run.job, {"cluster": self._cluster, "id": job.job_id})
        return job

    def _still_running(self, run: StudyRunFolder) -> Any:
        """The run's job of an earlier start, if SLURM still has it."""
        before = read_record(run.job)
        if before is None or {before["cluster"], self._cluster} != {"slurm"}:
            return None
        job = self._submitit.SlurmJob(folder=self._folder, job_id=before["id"])
        return job if job.state.split(" ")[0] in _ALIVE and not job.done() else None

    def stop(self) -> None:
        """End the jobs of submitit's local executor; those of SLURM go on."""
        if self._lifeline:
            self._lifeline.end()


def slurm_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """submitit's parameters for those of a study's file, a day for each job unless it says otherwise."""
    named = {_SHARED.get(name, f"slurm_{name.removeprefix('slurm_')}"): value for name, value in given.items()}
    return {"timeout_min": 24 * 60, **named}  # slurm_time wins over it; the local executor knows it alone


def failure(job: Job) -> str | None:
    """Why a job that is done failed, None where it did not."""
    try:
        reason = job.result()
    except Exception as error:  # submitit raises its own kinds: no result, a job that was cancelled, a lost node
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
    if reason is None or isinstance(job, Future):
        return reason
    return f"job {job.job_id}: {reason} (the job's own log: {job.paths.stderr})"  # type: ignore[attr-defined]


def visible_devices() -> list[str]:
    """The CUDA devices that runs are shared out to, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [device for device in named.split(",") if device]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def carry_out_job(folder: str, stages: Sequence[str], lifeline: str | None) -> str | None:
    """`carry_out` in a process of its own, which ends with the study if there is a lifeline."""
    watch(lifeline)
    return carry_out(folder, stages, {_LIFELINE: lifeline or ""})


def carry_out(folder: str, stages: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Do those of a run's stages that are not done: ``train``, ``select`` (score on the validation split), ``test``.

    Args:
        folder: of the run, with its plan.
        environment: variables that the processes have in addition.

    Returns:
        Why a stage failed; the later ones are not begun then. None where all are done.
    """
    run = StudyRunFolder(Path(folder))
    with locked(run.path / LOCK) as alone:
        if not alone:
            return f"another process is carrying out {folder}"
        todo = [stage for stage in stages if run.done(stage) is None]
        splits = [stage for stage in todo if stage != "train"]
        try:
            if "train" in todo:
                _train(run, environment)
            if splits and "diverged" in (run.done("train") or {}):
                for split in splits:
                    write_record(
                        run.record(split), {"metrics": dict.fromkeys((read_record(run.plan) or {})["metrics"])}
                    )
            elif splits:
                run_process(run.path / "score.log", ["score", str(run.path), *splits], environment)
        except StepJepaError as error:
            return str(error)
    return None


def _train(run: StudyRunFolder, environment: Mapping[str, str]) -> None:
    training, begin = run.training, time.perf_counter()
    checkpoint, complete = training.checkpoint, training.finished_steps is not None
    begun = 0 if complete or checkpoint is None else recorded_steps(checkpoint)[0]
    # What a killed training left without a checkpoint is worth nothing.
    how = ["--resume_from_checkpoint", "true"] if complete or checkpoint else ["--overwrite_output_dir", "true"]
    (run.model / BROKEN).unlink(missing_ok=True)
    try:
        argv = ["train", "--config", str(run.train_config), "--output_dir", str(run.model), *how]
        run_process(run.path / "train.log", argv, environment)
    except StageFailed:
        broken = training.broken
        if broken is None:
            raise
        # That it diverged is the run's result: no metric of it has a value, and no cell with it is chosen.
        write_record(run.record("train"), {"steps": broken["step"], "diverged": broken["what"], "train_seconds": None})
        return
    written = read_record(run.model / "metrics.json") or {}
    metrics, steps = written.get("metrics", {}), written.get("steps", 0)
    seconds = metrics.get("train_runtime")
    if seconds is not None and begun:  # of the steps since the checkpoint; the others took as long
        seconds = seconds * steps / (steps - begun) if steps > begun else None
    record = {
        "steps": steps,
        "flops": metrics.get("total_flos"),
        "train_seconds": seconds,
        "process_seconds": time.perf_counter() - begin,
        "resumed_at_step": begun or None,
        "data": (read_record(run.model / "run.json") or {}).get("data", {}),
    }
    write_record(run.record("train"), record)


def run_process(log: Path, argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a process of this module to its end; what it prints is added to its log.

    Raises:
        StageFailed: its exit status is not 0; with the last lines that it printed.
    """
    with open(log, "ab+", opener=no_links) as file:
        file.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} stepjepa {' '.join(argv)}\n".encode())
        file.flush()
        start = file.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "stepjepa.study.launch", *argv],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,  # Ctrl-C is for the study, which then ends its processes
        )
        try:
            status = process.wait()
        finally:
            if process.poll() is None:  # a job that is interrupted
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if status != 0:
            file.seek(max(start, file.seek(0, os.SEEK_END) - 20_000))
            printed = file.read().decode("utf-8", "replace").splitlines()
            lines = [" ".join(line.split())[:300] for line in printed if line.strip()][-5:]
            how = f"exit status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"
            raise StageFailed(f"{how}; {log}: {' | '.join(lines) or 'it printed nothing'}")


def main(argv: list[str]) -> int:
    """One of the processes; exit status."""
    watch(os.environ.get(_LIFELINE))
    try:
        if argv[0] == "score":
            from stepjepa.study.scoring import score_splits

            score_splits(StudyRunFolder(Path(argv[1])), argv[2:])
        elif argv[0] == "demo":
            from stepjepa.study.demo import run_arm

            run_arm(argv[1], Path(argv[2]))
        else:
            sys.argv = ["stepjepa", *argv]
            runpy.run_module("stepjepa", run_name="__main__")  # which exits
    except StepJepaError as error:
        print_error(f"stepjepa {argv[0]}: error: {error}")
        return error.status
    except KeyboardInterrupt:  # the demo says so
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


@dataclass
class Item:
    """A run of the study: the stages that are wanted of it, its job while it is carried out, and why it failed."""

    run: Run
    folder: StudyRunFolder
    stages: tuple[str, ...]
    job: Job | None = None
    error: str | None = None

    @property
    def todo(self) -> list[str]:
        """The stages that are not done."""
        return [stage for stage in self.stages if self.folder.done(stage) is None]


@dataclass
class Outcome:
    """All runs of a study after it was carried out, and notes on its data."""

    study: Study
    state: State
    items: list[Item]
    notes: list[str]

    @property
    def failed(self) -> list[Item]:
        """The runs that are not done: those that ended with an error and those that were not begun."""
        return [item for item in self.items if item.todo or item.error is not None]
