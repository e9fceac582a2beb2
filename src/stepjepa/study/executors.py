"""Where the runs of a study are carried out: processes here, jobs of submitit (SLURM), tasks of Ray. One protocol."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
import traceback
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Protocol, cast

from stepjepa.errors import ConfigError, StepJepaError, said
from stepjepa.study import stages
from stepjepa.study.records import StudyRunFolder, read_record, write_record
from stepjepa.study.spec import Study
from stepjepa.utils.failures import library
from stepjepa.utils.parallel import RETRIES, connect, enter, plain_errors
from stepjepa.utils.text import one_line

# Parameters of submitit that all its executors share, by their short names in a study's file; any other is SLURM's.
_OF_SUBMITIT = {
    "gpus": "gpus_per_node",
    "cpus": "cpus_per_task",
    "gpus_per_node": "gpus_per_node",
    "cpus_per_task": "cpus_per_task",
    "mem_gb": "mem_gb",
    "timeout_min": "timeout_min",
    "stderr_to_stdout": "stderr_to_stdout",
    "name": "name",
}
_OF_RAY = {"cpus": "num_cpus", "gpus": "num_gpus", "retries": "max_retries"}
_ALIVE = ("PENDING", "RUNNING", "REQUEUED", "COMPLETING", "CONFIGURING", "SUSPENDED", "RESIZING")
_DAY = 24 * 60  # minutes


class Executor(Protocol):
    """Carries runs out, each call in a thread of its own."""

    def carry_out(self, run: StudyRunFolder, todo: Sequence[str]) -> str | None:
        """Do the stages of a run and wait for them; why one failed, None where all are done."""

    def stop(self) -> None:
        """End what is being carried out; jobs in a queue go on."""


def executor_of(study: Study) -> Executor:
    """The executor that a study names.

    Raises:
        ConfigError: it cannot be used.
    """
    if study.executor == "ray":
        return RayTasks(study.ray)
    if study.executor == "processes":
        return Processes(study.jobs, study.processes_per_run)
    return Submitit(study.executor, study.output_dir / "jobs", study.slurm)


class Processes:
    """Runs on this machine, each with its share of the cores and a GPU for each of its `processes`."""

    def __init__(self, jobs: int, processes: int = 1):
        self._devices: queue.Queue[list[str]] = queue.Queue()
        devices = cycle(visible_devices())
        for _ in range(jobs):
            share = dict.fromkeys(islice(devices, processes))  # each once, where there are fewer than processes
            self._devices.put(list(share))
        cores = os.cpu_count() or 1
        threads = max(1, cores // (jobs * processes))
        self._environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}

    def carry_out(self, run: StudyRunFolder, todo: Sequence[str]) -> str | None:
        """See `Executor`."""
        devices = self._devices.get()
        environment = dict(self._environment)
        if devices:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        try:
            return stages.carry_out(str(run.path), todo, environment)
        finally:
            self._devices.put(devices)

    def stop(self) -> None:
        """See `Executor`."""
        stages.kill_all()


def visible_devices() -> list[str]:
    """The CUDA devices that runs share, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [device for device in named.split(",") if device]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


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
        self._seconds = 5.0 if cluster == "slurm" else 0.5  # between two looks at a shared file system
        self._stopped = threading.Event()
        self._alone = threading.Lock()  # submitit is made for one thread
        try:
            self._executor = self._submitit.AutoExecutor(folder=folder, cluster=cluster)
            self._executor.update_parameters(**slurm_parameters(parameters))
        except (RuntimeError, ValueError, TypeError, NameError) as error:
            raise ConfigError(f"slurm: {said(error, lines=1)}") from None
        # submitit asks sacct whether a job has ended, and without an answer waits for ever.
        if cluster == "slurm" and subprocess.run(["sh", "-c", "sacct"], capture_output=True, check=False).returncode:
            raise ConfigError("slurm: sacct fails here; a study needs SLURM's accounting to see which jobs have ended")

    def carry_out(self, run: StudyRunFolder, todo: Sequence[str]) -> str | None:
        """See `Executor`; the run's job may be one that an earlier start has left in the queue.

        Raises:
            StepJepaError: the job could not be submitted.
        """
        with self._alone:
            job = self._job_in_queue(run) or self._submit(run, todo)
        while not self._has_ended(job):
            if self._stopped.wait(self._seconds):
                if self._cluster == "local":
                    job.cancel()
                return "the study was interrupted"
        try:
            reason = job.result()
        except Exception as error:  # submitit raises its own kinds: a job that was cancelled, a lost node
            reason = f"{type(error).__name__}, the state of the job is {job.state}"
        return reason and f"job {job.job_id}: {reason} (the job's own log: {job.paths.stderr})"

    def _has_ended(self, job: Any) -> bool:
        with self._alone:
            return job.done()

    def _submit(self, run: StudyRunFolder, todo: Sequence[str]) -> Any:
        ends_with = str(os.getpid()) if self._cluster == "local" else ""
        try:
            job = self._executor.submit(Job(), str(run.path.resolve()), list(todo), ends_with)
        except Exception as error:  # whatever sbatch and the file system have to say
            raise StepJepaError(f"{run.path}: the job could not be submitted: {said(error)}") from None
        write_record(run.job, {"cluster": self._cluster, "id": job.job_id})
        return job

    def _job_in_queue(self, run: StudyRunFolder) -> Any:
        """The run's job of an earlier start, if SLURM still has it."""
        before = read_record(run.job)
        if before is None or self._cluster != "slurm" or before["cluster"] != "slurm":
            return None
        job = self._submitit.SlurmJob(folder=self._folder, job_id=before["id"])
        state = job.state.split(" ")[0]  # SLURM adds who cancelled it
        return job if state in _ALIVE and not job.done() else None

    def stop(self) -> None:
        """Wait no longer, and end the jobs of submitit's local executor; those of SLURM go on."""
        self._stopped.set()


def slurm_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """submitit's parameters for those of a study's file, a day for each job unless it says otherwise."""
    parameters: dict[str, Any] = {"timeout_min": _DAY}  # slurm_time wins over it; the local executor knows it alone
    for name, value in given.items():
        parameters[_OF_SUBMITIT.get(name, f"slurm_{name.removeprefix('slurm_')}")] = value
    return parameters


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


class RayTasks:
    """Runs as tasks of a Ray cluster, which end with the study; one whose process is lost is begun again.

    Args:
        options: of the tasks: `cpus`, `gpus`, `retries`, or others by Ray's names.

    Raises:
        ConfigError: Ray or an option cannot be used.
    """

    def __init__(self, options: Mapping[str, Any]):
        self._ray = connect()
        self._tasks = set[Any]()
        parameters: dict[str, Any] = {"max_retries": RETRIES}
        for name, value in options.items():
            parameters[_OF_RAY.get(name, name)] = value
        try:
            self._task = self._ray.remote(carry_out_task).options(**parameters)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"ray: {said(error, lines=1)}") from None

    def carry_out(self, run: StudyRunFolder, todo: Sequence[str]) -> str | None:
        """See `Executor`."""
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
        """See `Executor`."""
        for task in [*self._tasks]:
            self._ray.cancel(task, force=True)


def carry_out_task(working: str, folder: str, todo: Sequence[str]) -> str | None:
    """`stages.carry_out` in a task of Ray, with which its processes end."""
    enter(working)
    return stages.carry_out(folder, todo, {})
