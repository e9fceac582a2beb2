"""The two stages of a run, training and scoring, and the executors that run them.

Each stage is a process with a log file: ``python -m stepjepa.study.stages train ...`` runs ``stepjepa train ...``, and
``score FOLDER SPLIT ...`` scores a run. The processes end with the study, even if it is killed; SLURM jobs continue. An
`Executor` runs stages as processes on this machine, as submitit jobs (SLURM), or as Ray tasks.
"""

from __future__ import annotations

import contextlib
import os
import queue
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from stepjepa.config.option import Names, Values
from stepjepa.data.types import LM
from stepjepa.errors import ConfigError, StepJepaError, library, said
from stepjepa.objectives.base import JEPA
from stepjepa.study.folder import StudyRunFolder, read_record, write_record
from stepjepa.study.spec import Study
from stepjepa.training.options import JEPAOptions, TrainerOptions
from stepjepa.training.run_folder import BROKEN, RECORD, RunFolder, recorded_step
from stepjepa.utils.files import LOCK, Record, locked, no_links
from stepjepa.utils.parallel import RETRIES, connect, enter, plain_errors
from stepjepa.utils.terminal import print_error
from stepjepa.utils.text import one_line

_NAME = Names(TrainerOptions, JEPAOptions)
# Environment variable with the id of the process whose end also ends a stage.
ENDS_WITH = "STEPJEPA_ENDS_WITH"
# Entries of the training log that a record keeps as curves.
_CURVES = ("step", LM, JEPA, "grad_norm")
_SPEED = ("_runtime", "_per_second")
# Names in a study's file -> the parameters that all executors of submitit share; any other name is a parameter of SLURM.
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
# The stages that are running now, so that `kill_all` can end them.
_processes: set[subprocess.Popen[bytes]] = set()


class StageFailed(StepJepaError):
    """A stage of a run failed; the message contains the last lines of its log."""


def carry_out(folder: str, stages: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Carry out a run's unfinished stages: ``train``, ``select`` (score on the validation split), ``test``.

    Args:
        folder: the folder of the run, with its plan.
        environment: additional environment variables for the processes.

    Returns:
        Why a stage failed, in which case later stages are not started; None if all are done.
    """
    run = StudyRunFolder(Path(folder))
    with locked(run.path / LOCK) as alone:
        if not alone:
            return f"another process is running {folder}"
        splits = [stage for stage in stages if stage != "train" and run.done(stage) is None]
        trained = run.done("train")
        # A record from a results file has no weights, so a run to be scored must be trained again.
        lost = trained is not None and "diverged" not in trained and not run.has_weights
        try:
            if ("train" in stages and trained is None) or (splits and lost):
                _train(run, environment)
            if splits:
                _score(run, splits, environment)
        except StepJepaError as error:
            return str(error)
    return None


def _score(run: StudyRunFolder, splits: Sequence[str], environment: Mapping[str, str]) -> None:
    """Score the splits. A run that diverged gets a record without values."""
    if "diverged" not in (run.done("train") or {}):
        run_process(run.path / "score.log", ["score", str(run.path), *splits], environment)
        return
    plan = read_record(run.plan) or {}
    for split in splits:
        write_record(run.record(split), {"metrics": dict.fromkeys(plan["metrics"])})


def _train(run: StudyRunFolder, environment: Mapping[str, str]) -> None:
    training = RunFolder(run.model)
    checkpoint, complete = training.checkpoint, training.finished_steps is not None
    begun = 0 if complete or checkpoint is None else recorded_step(checkpoint)
    # A training run that was killed before its first checkpoint left nothing to resume from.
    how = _NAME.resume_from_checkpoint if complete or checkpoint else _NAME.overwrite_output_dir
    (run.model / BROKEN).unlink(missing_ok=True)
    argv = [
        "train",
        "--config",
        str(run.train_config),
        f"--{_NAME.output_dir}",
        str(run.model),
        f"--{how}",
        "true",
    ]
    try:
        run_process(run.path / "train.log", argv, environment)
    except StageFailed:
        broken = training.broken
        if broken is None:
            raise
        # Divergence is a result: no metric has a value, and the validation split cannot choose this cell.
        record = {"steps": broken["step"], "diverged": broken["what"], "train_seconds": None}
    else:
        record = _training_record(run, begun)
    write_record(run.record("train"), {**record, **_circumstances(run)})


def _training_record(run: StudyRunFolder, begun: int) -> Record:
    """The record of a completed training run, which resumed at step `begun` or started at 0."""
    written = read_record(run.model / "metrics.json") or {}
    metrics, steps = written.get("metrics", {}), written.get("steps", 0)
    history, losses = [], []
    for entry in written.get("log_history", ()):
        if "eval_loss" in entry:
            history.append(
                {name: value for name, value in entry.items() if not name.endswith(_SPEED)}
            )
        if "loss" in entry:
            losses.append({name: entry[name] for name in _CURVES if name in entry})
    return {
        "steps": steps,
        "flops": metrics.get("total_flos"),
        # After a resume, the Trainer counts only the time since the checkpoint.
        "train_seconds": None if begun else metrics.get("train_runtime"),
        "resumed_at_step": begun or None,
        "history": history,
        "losses": losses,
    }


def _circumstances(run: StudyRunFolder) -> dict[str, str | None]:
    """The hardware, the dtypes and the commit of a run's training; None for those that its record lacks."""
    record = read_record(run.model / RECORD) or {}
    settings = record.get("settings", {})
    machine = record.get("device")
    if machine == "cpu":
        machine = record.get("machine", {}).get("processor") or machine
    dtype = None
    if settings.get("dtype"):
        dtype = f"{settings['dtype']} weights"
        if settings.get(_NAME.bf16):
            dtype += ", bf16 autocast"
    return {"machine": machine, "dtype": dtype, "commit": record.get("git_commit")}


# Processes


def run_process(log: Path, argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run this module in a subprocess, wait for it to end, and append its output to the log.

    Raises:
        StageFailed: the exit status is not 0; the message has the last lines of the output.
    """
    with open(log, "ab+", opener=no_links) as file:
        file.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} stepjepa {' '.join(argv)}\n".encode())
        file.flush()
        start = file.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "stepjepa.study.stages", *argv],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            # The stage watches this process, unless `environment` names another one, see `_main`.
            env={**os.environ, ENDS_WITH: str(os.getpid()), **environment},
            # A separate session keeps Ctrl-C from the stage: the study catches it and ends its processes in order.
            start_new_session=True,
        )
        _processes.add(process)
        try:
            status = process.wait()
        finally:
            _processes.discard(process)
            # If the wait was interrupted, the process is still running.
            kill_group(process)
        if status != 0:
            # The last lines usually contain the error message, which several processes may print.
            file.seek(start)
            printed = file.read().decode("utf-8", "replace").splitlines()
            lines = [" ".join(line.split())[:300] for line in printed if line.strip()]
            last = [*dict.fromkeys(lines)][-5:]
            how = (
                f"exit status {status}"
                if status > 0
                else f"killed by {signal.Signals(-status).name}"
            )
            raise StageFailed(f"{how}; {log}: {' | '.join(last) or 'it printed nothing'}")


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that is still running, and its children."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def kill_all() -> None:
    """Kill every process that a thread awaits in `run_process`."""
    for process in [*_processes]:
        kill_group(process)


def end_with(pid: str | None) -> None:
    """Kill this process and its children once the process `pid` has ended; with None or "", no process is watched."""
    if pid and hasattr(os, "killpg"):
        threading.Thread(target=_end_with, args=(int(pid),), daemon=True).start()


def _end_with(pid: int) -> None:
    with contextlib.suppress(OSError):
        while True:
            # Signal 0 only checks that the process exists, and raises OSError if it does not.
            os.kill(pid, 0)
            time.sleep(0.5)
    # A stage leads a process group, to which its data workers belong. A group with another leader must not be killed.
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _main(argv: list[str]) -> int:
    """Carry out a stage in a process that `run_process` started; if it fails, print why."""
    end_with(os.environ.get(ENDS_WITH))
    try:
        if argv[0] == "score":
            from stepjepa.study.score import score_splits  # loads what generating needs

            score_splits(StudyRunFolder(Path(argv[1])), argv[2:])
        else:
            sys.argv = ["stepjepa", *argv]
            # This call does not return: the command exits the process.
            runpy.run_module("stepjepa", run_name="__main__")
    except StepJepaError as error:
        print_error(f"stepjepa {argv[0]}: error: {error}")
        return error.status
    return 0


# Executors


def executor_of(study: Study) -> Executor:
    """The executor of a study.

    Raises:
        ConfigError: it cannot be used.
    """
    if study.executor == "ray":
        return RayTasks(study.ray)
    if study.executor == "processes":
        return Processes(study.jobs)
    return Submitit(study.executor, study.output_dir / "jobs", study.slurm)


class Processes:
    """Executes runs on this machine, each with its share of the cores and, if the machine has GPUs, with one GPU."""

    def __init__(self, jobs: int):
        devices = visible_devices()
        self._devices: queue.Queue[str | None] = queue.Queue()
        for job in range(jobs):
            device = devices[job % len(devices)] if devices else None
            self._devices.put(device)
        cores = os.cpu_count() or 1
        threads = os.environ.get("OMP_NUM_THREADS", str(max(1, cores // jobs)))
        self._environment = {"OMP_NUM_THREADS": threads}

    def carry_out(self, run: StudyRunFolder, todo: Sequence[str]) -> str | None:
        """Carry out the stages of a run and wait for them; return why one failed, or None if all are done.

        Each call comes from its own thread.
        """
        device = self._devices.get()
        environment = dict(self._environment)
        if device is not None:
            environment["CUDA_VISIBLE_DEVICES"] = device
        try:
            return carry_out(str(run.path), todo, environment)
        finally:
            self._devices.put(device)

    def stop(self) -> None:
        """Stop the active runs."""
        kill_all()


def visible_devices() -> list[str]:
    """The CUDA devices that the runs share, by their names in CUDA_VISIBLE_DEVICES."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [device for device in named.split(",") if device]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


class Submitit:
    """Executes runs as SLURM jobs, or as jobs of submitit's local executor, which works the same way without a cluster.

    Args:
        cluster: ``slurm``, whose jobs outlive the study, or ``local``.
        folder: the folder for the scripts and logs of the jobs, on a file system that all nodes share.
        parameters: the parameters of the jobs, see `slurm_parameters`.

    Raises:
        ConfigError: submitit or SLURM is missing, or a parameter cannot be used.
    """

    def __init__(self, cluster: str, folder: Path, parameters: Values):
        self._submitit = library("submitit", "study")
        self._cluster, self._folder = cluster, folder
        # Seconds between two checks of a job, each of which reads the shared file system.
        self._seconds = 5.0 if cluster == "slurm" else 0.5
        self._stopped = threading.Event()
        # submitit is not thread-safe.
        self._alone = threading.Lock()
        try:
            self._executor = self._submitit.AutoExecutor(folder=folder, cluster=cluster)
            self._executor.update_parameters(**slurm_parameters(parameters))
        except (RuntimeError, ValueError, TypeError, NameError) as error:
            raise ConfigError(f"slurm: {said(error, lines=1)}") from None
        # submitit asks sacct whether a job has ended, and waits forever if sacct does not answer.
        if (
            cluster == "slurm"
            and subprocess.run(["sh", "-c", "sacct"], capture_output=True, check=False).returncode
        ):
            raise ConfigError(
                "slurm: sacct fails here; a study needs SLURM's accounting to see which jobs have ended"
            )

    def carry_out(self, run: StudyRunFolder, todo: Sequence[str]) -> str | None:
        """See `Processes.carry_out`. A job that an earlier start of the study left in the queue is awaited, not repeated.

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
        except Exception as error:
            # submitit raises many types: for a cancelled job, a lost node, a result that cannot be read.
            reason = f"{type(error).__name__}, the state of the job is {job.state}"
        return reason and f"job {job.job_id}: {reason} (the job's own log: {job.paths.stderr})"

    def _has_ended(self, job: Any) -> bool:
        with self._alone:
            return job.done()

    def _submit(self, run: StudyRunFolder, todo: Sequence[str]) -> Any:
        ends_with = str(os.getpid()) if self._cluster == "local" else ""
        try:
            job = self._executor.submit(Job(), str(run.path.resolve()), list(todo), ends_with)
        except Exception as error:
            # sbatch, the scheduler and the file system fail in many ways.
            raise StepJepaError(
                f"{run.path}: the job could not be submitted: {said(error)}"
            ) from None
        write_record(run.job, {"cluster": self._cluster, "id": job.job_id})
        return job

    def _job_in_queue(self, run: StudyRunFolder) -> Any:
        """The run's job from an earlier start, if SLURM still has it."""
        before = read_record(run.job)
        if before is None or self._cluster != "slurm" or before["cluster"] != "slurm":
            return None
        job = self._submitit.SlurmJob(folder=self._folder, job_id=before["id"])
        # SLURM writes "CANCELLED by 1000".
        state = job.state.split(" ")[0]
        return job if state in _ALIVE and not job.done() else None

    def stop(self) -> None:
        """Stop waiting, and end the jobs of submitit's local executor; those of SLURM continue."""
        self._stopped.set()


def slurm_parameters(given: Values) -> dict[str, Any]:
    """Convert the job parameters in a study's file to submitit's. A job may take a day by default."""
    # slurm_time overrides timeout_min, the only limit that the local executor has.
    parameters: dict[str, Any] = {"timeout_min": _DAY}
    for name, value in given.items():
        parameters[_OF_SUBMITIT.get(name, f"slurm_{name.removeprefix('slurm_')}")] = value
    return parameters


class Job:
    """`carry_out` as a submitit job, which is requeued at its time limit or when it is preempted."""

    def __call__(self, folder: str, todo: Sequence[str], ends_with: str) -> str | None:
        """Return why the run failed. The job ends with the process `ends_with` (the study), unless it is ""."""
        end_with(ends_with)
        try:
            return carry_out(folder, todo, {ENDS_WITH: ends_with})
        except Exception as error:
            # submitit raises here, too: for a job that may not be requeued again.
            traceback.print_exc()
            return one_line(said(error), 400)

    def checkpoint(self, *arguments: object) -> object:
        """The same job again: finished stages are not repeated, and training resumes from its checkpoint."""
        return library("submitit", "study").helpers.DelayedSubmission(self, *arguments)


class RayTasks:
    """Executes runs as tasks in a Ray cluster; the tasks end with the study. A task whose process is lost starts again.

    Args:
        options: task options: `cpus`, `gpus`, `retries`, or any other option under Ray's own name.

    Raises:
        ConfigError: Ray or an option cannot be used.
    """

    def __init__(self, options: Values):
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
        """See `Processes.carry_out`."""
        task = self._task.remote(os.getcwd(), str(run.path.resolve()), list(todo))
        self._tasks.add(task)
        try:
            with plain_errors():
                return cast("str | None", self._ray.get(task))
        except Exception as error:
            # The error concerns only this run; the others continue.
            return one_line(said(error), 400)
        finally:
            self._tasks.discard(task)

    def stop(self) -> None:
        """Stop the active runs."""
        for task in [*self._tasks]:
            self._ray.cancel(task, force=True)


Executor = Processes | Submitit | RayTasks


def carry_out_task(working: str, folder: str, todo: Sequence[str]) -> str | None:
    """`carry_out` in a Ray task; its processes end with the task."""
    enter(working)
    return carry_out(folder, todo, {})


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
