"""Where runs are carried out: in processes of this machine, or in jobs of SLURM through submitit (extra ``study``)."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from stepjepa.config.values import nearest
from stepjepa.data.extras import library
from stepjepa.errors import ConfigError, StepJepaError
from stepjepa.study.results import StudyRunFolder, read_record, write_record
from stepjepa.study.work import StageFailed, carry_out, carry_out_job, end_running

# Short names of a study file -> submitit's.
_SLURM_NAMES = {
    "partition": "slurm_partition",
    "account": "slurm_account",
    "qos": "slurm_qos",
    "constraint": "slurm_constraint",
    "time": "slurm_time",
    "setup": "slurm_setup",
    "gpus": "gpus_per_node",
    "cpus": "cpus_per_task",
}
_COMMON = ("timeout_min", "mem_gb", "gpus_per_node", "cpus_per_task", "stderr_to_stdout", "name")
_ONE_DAY = 24 * 60
_ALIVE = ("PENDING", "RUNNING", "REQUEUED", "COMPLETING", "CONFIGURING", "SUSPENDED", "RESIZING")


class Handle(Protocol):
    """A run that is being carried out."""

    def done(self) -> bool:
        """Whether it has ended, well or not."""

    def error(self) -> str | None:
        """Why it failed, None where it did not. Called once it is done."""


class Executor(Protocol):
    """Starts runs; as many at a time as the study has jobs.

    Attributes:
        pause: seconds between two looks at what has ended.
    """

    pause: float

    def start(self, run: StudyRunFolder, stages: Sequence[str]) -> Handle:
        """Begin to carry out a run.

        Raises:
            StepJepaError: it could not be begun.
        """

    def stop(self) -> None:
        """End what is running here. Jobs in a cluster's queue go on."""


class Processes:
    """Runs in threads of the study, whose stages are processes of this machine.

    Args:
        jobs: at a time.
        pipe: see `child.watch`.
    """

    pause = 0.1

    def __init__(self, jobs: int, pipe: str | None):
        self._pool = ThreadPoolExecutor(jobs, thread_name_prefix="run")
        self._pipe = pipe
        self._devices: queue.Queue[str | None] = queue.Queue()
        devices = visible_devices()
        for number in range(jobs):
            self._devices.put(devices[number % len(devices)] if devices else None)
        threads = max(1, (os.cpu_count() or 1) // jobs)
        self._environment = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(threads)}

    def start(self, run: StudyRunFolder, stages: Sequence[str]) -> Handle:
        """See `Executor`; the run waits until one of the jobs is free."""
        return _FutureHandle(self._pool.submit(self._carry_out, str(run.path), list(stages)))

    def _carry_out(self, folder: str, stages: list[str]) -> None:
        device = self._devices.get()  # one GPU for each run
        try:
            chosen = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
            carry_out(folder, stages, self._pipe, {**self._environment, **chosen})
        finally:
            self._devices.put(device)

    def stop(self) -> None:
        """End the processes, and begin no more runs."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        end_running()
        self._pool.shutdown(wait=True)


class Submitit:
    """Runs as jobs of SLURM, or of submitit's local executor, which does the same without a cluster.

    Args:
        cluster: ``slurm`` or ``local``.
        folder: for the jobs' scripts and their own logs; all nodes must see it.
        parameters: of the jobs, see `slurm_parameters`.
        pipe: the end of local jobs; those of a cluster outlive the study.

    Raises:
        ConfigError: submitit or SLURM is not there, or a parameter cannot be used.
    """

    def __init__(self, cluster: str, folder: Path, parameters: Mapping[str, Any], pipe: str | None):
        self._submitit = library("submitit", "study")
        self._cluster, self._folder = cluster, folder
        self.pause = 5.0 if cluster == "slurm" else 0.5  # each look is one at a shared file system
        self._pipe = pipe if cluster == "local" else None
        try:
            self._executor = self._submitit.AutoExecutor(folder=folder, cluster=cluster)
            self._executor.update_parameters(**slurm_parameters(parameters, self._submitit))
        except (RuntimeError, ValueError, TypeError, NameError) as error:
            raise ConfigError(f"slurm: {' '.join(str(error).split())}") from None
        self._handles: list[_JobHandle] = []

    def start(self, run: StudyRunFolder, stages: Sequence[str]) -> Handle:
        """See `Executor`; a job that an earlier start has left in the queue is taken up again.

        Raises:
            StepJepaError: the job could not be submitted.
        """
        job = self._still_running(run)
        if job is None:
            try:
                job = self._executor.submit(carry_out_job, str(run.path.resolve()), list(stages), self._pipe)
            except Exception as error:  # whatever sbatch and the file system have to say
                raise StepJepaError(
                    f"{run.path}: the job could not be submitted: {' '.join(str(error).split())}"
                ) from None
            write_record(run.job, {"cluster": self._cluster, "id": job.job_id})
        handle = _JobHandle(job, run)
        self._handles.append(handle)
        return handle

    def _still_running(self, run: StudyRunFolder) -> Any:
        """The run's job of an earlier start, if SLURM still has it."""
        before = read_record(run.job)
        if before is None or before["cluster"] != "slurm" or self._cluster != "slurm":
            return None
        job = self._submitit.SlurmJob(folder=self._folder, job_id=before["id"])
        return job if job.state.split(" ")[0] in _ALIVE and not job.done() else None

    def stop(self) -> None:
        """Cancel the jobs of submitit's local executor; those of SLURM go on."""
        if self._cluster == "local":
            for handle in self._handles:
                handle.cancel()


def slurm_parameters(given: Mapping[str, Any], submitit: Any) -> dict[str, Any]:
    """submitit's parameters for those of a study file.

    Raises:
        ConfigError: an unknown one; the message names the nearest.
    """
    slurm = {f"slurm_{name}" for name in submitit.SlurmExecutor._valid_parameters()}
    known = [*_COMMON, *slurm, *_SLURM_NAMES]
    made: dict[str, Any] = {"timeout_min": _ONE_DAY}
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f"slurm: unknown parameter {name!r}; did you mean {nearest(name, known)!r}?")
        made[_SLURM_NAMES.get(name, name)] = value
    return made  # slurm_time stands above timeout_min, which the local executor takes


def make_executor(kind: str, jobs: int, folder: Path, parameters: Mapping[str, Any], pipe: str | None) -> Executor:
    """The executor of a study.

    Raises:
        ConfigError: as `Submitit`.
    """
    if kind == "processes":
        return Processes(jobs, pipe)
    return Submitit(kind, folder, parameters, pipe)


@contextlib.contextmanager
def lifeline() -> Iterator[str | None]:
    """A named pipe that this process holds open for writing as long as it lives; None where the system has none."""
    if not hasattr(os, "mkfifo"):
        yield None
        return
    folder = tempfile.mkdtemp(prefix="stepjepa-study-")
    path = os.path.join(folder, "alive")
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        yield path
    finally:
        os.close(writer)
        shutil.rmtree(folder, ignore_errors=True)


def visible_devices() -> list[str]:
    """The CUDA devices that runs are shared out to, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [device for device in named.split(",") if device]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


class _FutureHandle:
    def __init__(self, future: Future[None]):
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def error(self) -> str | None:
        failure = self._future.exception()
        if failure is not None and not isinstance(failure, Exception):
            raise failure  # an interruption is no failure of the run
        return None if failure is None else _words(failure)


class _JobHandle:
    def __init__(self, job: Any, run: StudyRunFolder):
        self._job, self._run = job, run

    def done(self) -> bool:
        return self._job.done()

    def error(self) -> str | None:
        try:
            said = self._job.result()
        except Exception as trouble:  # submitit raises its own kinds: no result, a job that was cancelled, a lost node
            said = _words(trouble)
        self._run.job.unlink(missing_ok=True)
        if said is None:
            return None
        return f"job {self._job.job_id}: {said} (the job's own log: {self._job.paths.stderr})"

    def cancel(self) -> None:
        if not self._job.done():
            self._job.cancel(check=False)


def _words(failure: BaseException) -> str:
    if isinstance(failure, StageFailed):
        return str(failure)
    lines = [line for line in str(failure).splitlines() if line.strip()]
    if isinstance(failure, StepJepaError):
        return " ".join(lines)
    return f"{type(failure).__name__}: {lines[-1].strip() if lines else 'no message'}"
