"""Carrying out one run: training, and then scoring, each in a process of its own with a log file.

`carry_out` is what an executor starts: in a thread of the study, or in a job of a cluster.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepjepa.errors import StepJepaError
from stepjepa.study.child import ENDS_WITH, watch
from stepjepa.study.results import StudyRunFolder, now, read_record, write_record
from stepjepa.training.run_folder import BROKEN, recorded_steps
from stepjepa.utils.files import LOCK, locked, no_links

LOG_LINES = 5
_GRACE = 10  # seconds from asking a process to end until it is killed
_running: set[subprocess.Popen[bytes]] = set()
_lock = threading.Lock()


class StageFailed(StepJepaError):
    """A stage of a run failed; the message holds the last lines of its log."""

    def __init__(self, stage: str, message: str):
        super().__init__(stage, message)  # both, so that it can be sent from a job
        self.stage, self.message = stage, message

    def __str__(self) -> str:
        return self.message


def carry_out(
    folder: str, stages: Sequence[str], pipe: str | None = None, environment: Mapping[str, str] | None = None
) -> None:
    """Do those of a run's stages that are not done: ``train``, ``select`` (score on the validation split), ``test``.

    Args:
        folder: of the run, with its plan.
        pipe: the study's named pipe (see `child`); None lets the run outlive the study, as a cluster's jobs do.
        environment: variables beside this process's.

    Raises:
        StageFailed: the run's later stages are not begun.
    """
    run = StudyRunFolder(Path(folder))
    with locked(run.path / LOCK) as alone:
        if not alone:
            raise StageFailed(stages[0], f"another process is at work in {folder}")
        variables = {**(environment or {}), ENDS_WITH: pipe or ""}
        open_stages = [stage for stage in stages if run.done(stage) is None]
        if "train" in open_stages:
            _train(run, variables)
        splits = [stage for stage in open_stages if stage != "train"]
        if splits:
            _score(run, splits, variables)


def carry_out_job(folder: str, stages: Sequence[str], pipe: str | None = None) -> str | None:
    """`carry_out` in a process of its own, which ends with the study if there is a pipe; why it failed, or None."""
    watch(pipe, _end_job)
    try:
        carry_out(folder, stages, pipe)
    except StepJepaError as error:
        return str(error)
    return None


def end_running() -> None:
    """End all processes that `carry_out` has started here."""
    with _lock:
        processes = list(_running)
    for process in processes:
        _signal(process, signal.SIGTERM)
    for process in processes:
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            _signal(process, signal.SIGKILL)
            process.wait()


def _end_job() -> None:
    end_running()
    os._exit(1)


def _train(run: StudyRunFolder, environment: Mapping[str, str]) -> None:
    training = run.training
    checkpoint, complete = training.checkpoint, training.finished_steps is not None
    begun = 0 if complete or checkpoint is None else recorded_steps(checkpoint)[0]
    # What a killed training left without a checkpoint is worth nothing.
    how = ["--resume_from_checkpoint", "true"] if complete or checkpoint else ["--overwrite_output_dir", "true"]
    argv = ["train", "--config", str(run.train_config), "--output_dir", str(run.model), *how]
    begin = time.perf_counter()
    (run.model / BROKEN).unlink(missing_ok=True)
    try:
        _run_child(run, "train", argv, environment)
    except StageFailed:
        broken = training.broken
        if broken is None:
            raise
        # That it diverged is what the run came to: no metric of it has a value, and no cell with it is chosen.
        diverged = {"steps": broken["step"], "diverged": broken["what"], "train_seconds": None}
        write_record(run.record("train"), {"at": now(), **diverged})
        return
    written = read_record(run.model / "metrics.json") or {}
    record = read_record(run.model / "run.json") or {}
    metrics = written.get("metrics", {})
    steps = written.get("steps", 0)
    seconds = metrics.get("train_runtime")
    if seconds is not None and begun:  # of the steps since the checkpoint; the others took as long
        seconds = seconds * steps / (steps - begun) if steps > begun else None
    write_record(
        run.record("train"),
        {
            "at": now(),
            "steps": steps,
            "flops": metrics.get("total_flos"),
            "train_seconds": seconds,
            "process_seconds": time.perf_counter() - begin,
            "resumed_at_step": begun or None,
            "data": record.get("data", {}),
        },
    )


def _score(run: StudyRunFolder, splits: Sequence[str], environment: Mapping[str, str]) -> None:
    if "diverged" in (run.done("train") or {}):
        metrics = dict.fromkeys((read_record(run.plan) or {}).get("metrics", ()))
        for split in splits:
            write_record(run.record(split), {"at": now(), "metrics": metrics, "seconds": 0.0})
        return
    _run_child(run, "score", ["score", str(run.path), *splits], environment)
    for split in splits:
        if run.done(split) is None:
            raise StageFailed(split, f"{run.log('score')}: the process ended well and left no record of {split}")


def _run_child(run: StudyRunFolder, stage: str, argv: list[str], environment: Mapping[str, str]) -> None:
    log = run.log(stage)
    with open(log, "ab", opener=no_links) as file:
        file.write(f"--- {now()} stepjepa {' '.join(argv)}\n".encode())
        file.flush()
        start = file.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "stepjepa.study.child", *argv],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,  # Ctrl-C is for the study, which then ends its processes
        )
    with _lock:
        _running.add(process)
    try:
        status = process.wait()
    finally:
        if process.poll() is None:
            _signal(process, signal.SIGTERM)
            process.wait()
        with _lock:
            _running.discard(process)
    if status != 0:
        how = f"exit status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"
        lines = " | ".join(last_lines(log, start)) or "it said nothing"
        raise StageFailed(stage, f"{how}; {log}: {lines}")


def _signal(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        process.send_signal(number)


def last_lines(path: Path, start: int = 0, count: int = LOG_LINES) -> list[str]:
    """The last lines of a log that say something, from byte `start` on."""
    with open(path, "rb") as file:
        file.seek(max(start, file.seek(0, os.SEEK_END) - 20_000))
        text = file.read().decode("utf-8", "replace")
    return [" ".join(line.split())[:300] for line in text.splitlines() if line.strip()][-count:]
