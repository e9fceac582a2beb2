"""The two stages of a run, training and scoring, each in a process of its own with a log file.

``python -m stepjepa.study.stages train ...`` is such a process for ``stepjepa train ...``, ``launch N train ...`` is
torchrun of N of them, and ``score FOLDER SPLIT ...`` scores a run. They end with the study, also where that is killed.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepjepa.config.option import Names
from stepjepa.data.types import LM
from stepjepa.errors import ConfigError, StepJepaError
from stepjepa.objectives.base import JEPA
from stepjepa.study.records import StudyRunFolder, read_record, write_record
from stepjepa.study.spec import Study
from stepjepa.training.options import JEPAOptions, TrainerOptions
from stepjepa.training.run_folder import BROKEN, RECORD, RunFolder, recorded_steps
from stepjepa.utils.files import LOCK, locked, no_links
from stepjepa.utils.terminal import print_error

_NAME = Names(TrainerOptions, JEPAOptions, Study)
ENDS_WITH = "STEPJEPA_ENDS_WITH"  # names the process with which one of a study ends
_CURVES = ("step", LM, JEPA, "grad_norm")  # of the training log
_SPEED = ("_runtime", "_per_second")
_processes: set[subprocess.Popen[bytes]] = set()  # that run now


class StageFailed(StepJepaError):
    """A stage of a run failed; the message holds the last lines of its log."""


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
        splits = [stage for stage in stages if stage != "train" and run.done(stage) is None]
        trained = run.done("train")
        # The record may have come without its model.
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
    """Score the splits; of a run that diverged no metric has a value."""
    if "diverged" not in (run.done("train") or {}):
        run_process(run.path / "score.log", ["score", str(run.path), *splits], environment)
        return
    plan = read_record(run.plan) or {}
    for split in splits:
        write_record(run.record(split), {"metrics": dict.fromkeys(plan["metrics"])})


def _train(run: StudyRunFolder, environment: Mapping[str, str]) -> None:
    training = RunFolder(run.model)
    checkpoint, complete = training.checkpoint, training.finished_steps is not None
    begun = 0 if complete or checkpoint is None else recorded_steps(checkpoint)[0]
    # What a killed training left without a checkpoint is worth nothing.
    how = _NAME.resume_from_checkpoint if complete or checkpoint else _NAME.overwrite_output_dir
    (run.model / BROKEN).unlink(missing_ok=True)
    argv = ["train", "--config", str(run.train_config), f"--{_NAME.output_dir}", str(run.model), f"--{how}", "true"]
    processes = (read_record(run.plan) or {}).get("processes", 1)
    if processes > 1:
        argv = ["launch", str(processes), *argv]
    try:
        run_process(run.path / "train.log", argv, environment)
    except StageFailed:
        broken = training.broken
        if broken is None:
            raise
        # That it diverged is the run's result: no metric of it has a value, and no cell with it is chosen.
        record = {"steps": broken["step"], "diverged": broken["what"], "train_seconds": None}
    else:
        record = _training_record(run, begun)
    write_record(run.record("train"), {**record, **_circumstances(run)})


def _training_record(run: StudyRunFolder, begun: int) -> dict[str, Any]:
    """What a training that ended came to; it resumed at step `begun`, or began at 0."""
    written = read_record(run.model / "metrics.json") or {}
    metrics, steps = written.get("metrics", {}), written.get("steps", 0)
    seconds = metrics.get("train_runtime")
    if seconds is not None and begun:  # of the steps since the checkpoint; the others took as long
        seconds = seconds * steps / (steps - begun) if steps > begun else None
    history, losses = [], []
    for entry in written.get("log_history", ()):
        if "eval_loss" in entry:
            history.append({name: value for name, value in entry.items() if not name.endswith(_SPEED)})
        if "loss" in entry:
            losses.append({name: entry[name] for name in _CURVES if name in entry})
    return {
        "steps": steps,
        "flops": metrics.get("total_flos"),
        "train_seconds": seconds,
        "resumed_at_step": begun or None,
        "history": history,
        "losses": losses,
    }


def _circumstances(run: StudyRunFolder) -> dict[str, str | None]:
    """Where and as what a run was trained, see `CIRCUMSTANCES` of the records; None for what its folder does not say."""
    record = read_record(run.model / RECORD) or {}
    machine = record.get("device")
    if machine == "cpu":
        processor = (record.get("machine") or {}).get("processor")
        machine = processor or machine
    settings = record.get("settings", {})
    dtype = None
    if settings.get("dtype"):
        dtype = f"{settings['dtype']} weights"
        if settings.get(_NAME.bf16):
            dtype += ", bf16 autocast"
    return {"machine": machine, "dtype": dtype, "commit": record.get("git_commit")}


# Processes


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
            [sys.executable, "-m", "stepjepa.study.stages", *argv],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            # It ends with this process unless `environment` names another one, see `_main`.
            env={**os.environ, ENDS_WITH: str(os.getpid()), **environment},
            start_new_session=True,  # Ctrl-C is for the study, which then ends its processes
        )
        _processes.add(process)
        try:
            status = process.wait()
        finally:
            _processes.discard(process)
            kill_group(process)  # if it is interrupted
        if status != 0:
            file.seek(max(start, file.seek(0, os.SEEK_END) - 20_000))
            printed = file.read().decode("utf-8", "replace").splitlines()
            lines = [" ".join(line.split())[:300] for line in printed if line.strip()]
            last = [*dict.fromkeys(lines)][-5:]  # several processes may print the same
            how = f"exit status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"
            raise StageFailed(f"{how}; {log}: {' | '.join(last) or 'it printed nothing'}")


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that has not ended yet, and those that it started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def kill_all() -> None:
    """End every process that a thread is waiting for in `run_process`."""
    for process in [*_processes]:
        kill_group(process)


def end_with(pid: str | None) -> None:
    """End this process, and those that it started, once the process `pid` has ended; None and "" watch nothing."""
    if pid and hasattr(os, "killpg"):
        threading.Thread(target=_end_with, args=(int(pid),), daemon=True).start()


def _end_with(pid: int) -> None:
    with contextlib.suppress(OSError):
        while True:
            os.kill(pid, 0)  # only asks whether it is there
            time.sleep(0.5)
    if os.getpgid(0) == os.getpid():  # each process of a stage leads a group of its own
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _main(argv: list[str]) -> int:
    """Do the stage of a process that `run_process` has started, and print why it failed."""
    end_with(os.environ.get(ENDS_WITH))
    try:
        _run_stage(argv)
    except StepJepaError as error:
        print_error(f"stepjepa {argv[0]}: error: {error}")
        return error.status
    return 0


def _run_stage(argv: list[str]) -> None:
    if argv[0] == "launch":
        _launch(int(argv[1]), argv[2:])
    elif argv[0] == "score":
        from stepjepa.study.score import score_splits  # loads what generating needs

        score_splits(StudyRunFolder(Path(argv[1])), argv[2:])
    else:
        sys.argv = ["stepjepa", *argv]
        runpy.run_module("stepjepa", run_name="__main__")  # which exits


def _launch(processes: int, argv: list[str]) -> None:
    """Do a stage by torchrun. Its workers lead groups of their own and end with this process, as it does with the study."""
    import torch
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    if 0 < torch.cuda.device_count() < processes:
        raise ConfigError(
            f"{_NAME.processes_per_run} is {processes}, and {torch.cuda.device_count()} GPUs are visible; each needs one"
        )
    os.environ[ENDS_WITH] = str(os.getpid())
    try:
        main(["--standalone", f"--nproc_per_node={processes}", "-m", "stepjepa.study.stages", *argv])
    except ChildFailedError as error:
        sys.exit(max(error.get_first_failure()[1].exitcode, 1))


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
