"""The two stages of a run, training and scoring, each in a process of its own with a log file.

``python -m stepjepa.study.stages train ...`` is such a process for ``stepjepa train ...``, ``launch N train ...`` is
torchrun of N of them, and ``score FOLDER SPLIT ...`` scores a run. They end with the study, also where that is killed.

All arms' states are scored alike: the views that the metric's options name, each at its last token, behind the final norm.
Predictor tokens are no part of that; most models are exported without them.
"""

from __future__ import annotations

import contextlib
import math
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from stepjepa.config.option import Names
from stepjepa.data.sources import RowSource
from stepjepa.data.types import LM
from stepjepa.errors import ConfigError, DataError, StepJepaError
from stepjepa.objectives.base import JEPA
from stepjepa.study.records import CIRCUMSTANCES, StudyRunFolder, read_record, write_record
from stepjepa.study.spec import Evaluation, Study, Values
from stepjepa.training.options import JEPAOptions
from stepjepa.training.run_folder import BROKEN, RECORD, RunFolder, recorded_steps
from stepjepa.training.run_options import TrainerOptions
from stepjepa.utils.failures import explaining
from stepjepa.utils.files import LOCK, locked, no_links
from stepjepa.utils.terminal import print_error, print_text

if TYPE_CHECKING:
    from stepjepa.analysis.geometry import GeometryNumbers, LinearMap

_NAME = Names(TrainerOptions, JEPAOptions, Evaluation, Study)
ENDS_WITH = "STEPJEPA_ENDS_WITH"  # names the process with which one of a study ends
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
        todo = [stage for stage in stages if run.done(stage) is None]
        splits = [stage for stage in todo if stage != "train"]
        if splits and (trained := run.done("train")) and "diverged" not in trained and not run.has_weights:
            todo = ["train", *splits]  # whose record may have come without its model
        try:
            if "train" in todo:
                _train(run, environment)
            if splits and "diverged" in (run.done("train") or {}):
                none = dict.fromkeys((read_record(run.plan) or {})["metrics"])
                for split in splits:
                    write_record(run.record(split), {"metrics": none})
            elif splits:
                run_process(run.path / "score.log", ["score", str(run.path), *splits], environment)
        except StepJepaError as error:
            return str(error)
    return None


def _train(run: StudyRunFolder, environment: Mapping[str, str]) -> None:
    training = RunFolder(run.model)
    checkpoint, complete = training.checkpoint, training.finished_steps is not None
    begun = 0 if complete or checkpoint is None else recorded_steps(checkpoint)[0]
    # What a killed training left without a checkpoint is worth nothing.
    how = _NAME.resume_from_checkpoint if complete or checkpoint else _NAME.overwrite_output_dir
    (run.model / BROKEN).unlink(missing_ok=True)
    try:
        processes = (read_record(run.plan) or {}).get("processes", 1)
        launch = ["launch", str(processes)] if processes > 1 else []
        argv = ["train", "--config", str(run.train_config), f"--{_NAME.output_dir}", str(run.model), f"--{how}", "true"]
        run_process(run.path / "train.log", [*launch, *argv], environment)
    except StageFailed:
        broken = training.broken
        if broken is None:
            raise
        # That it diverged is the run's result: no metric of it has a value, and no cell with it is chosen.
        diverged = {"steps": broken["step"], "diverged": broken["what"], "train_seconds": None}
        write_record(run.record("train"), {**diverged, **_circumstances(run)})
        return
    written = read_record(run.model / "metrics.json") or {}
    metrics, steps = written.get("metrics", {}), written.get("steps", 0)
    log, curves = written.get("log_history", ()), ("step", LM, JEPA, "grad_norm")
    evaluations = [entry for entry in log if "eval_loss" in entry]
    speed = ("_runtime", "_per_second")
    seconds = metrics.get("train_runtime")
    if seconds is not None and begun:  # of the steps since the checkpoint; the others took as long
        seconds = seconds * steps / (steps - begun) if steps > begun else None
    record = {
        "steps": steps,
        "flops": metrics.get("total_flos"),
        "train_seconds": seconds,
        "resumed_at_step": begun or None,
        "history": [{k: v for k, v in entry.items() if not k.endswith(speed)} for entry in evaluations],
        "losses": [{name: entry[name] for name in curves if name in entry} for entry in log if "loss" in entry],
        **_circumstances(run),
    }
    write_record(run.record("train"), record)


def _circumstances(run: StudyRunFolder) -> dict[str, str | None]:
    """Where and as what a run was trained, see `CIRCUMSTANCES`; None for what its folder does not say."""
    record = read_record(run.model / RECORD) or {}
    settings, device = record.get("settings", {}), record.get("device")
    if device == "cpu":
        device = (record.get("machine") or {}).get("processor") or device
    dtype = f"{settings['dtype']} weights" if settings.get("dtype") else None
    if dtype and settings.get(_NAME.bf16):
        dtype += ", bf16 autocast"
    return dict(zip(CIRCUMSTANCES, (device, dtype, record.get("git_commit")), strict=True))


# Processes


def start_process(words: Sequence[str], environment: Values, output: IO[bytes] | int) -> subprocess.Popen[bytes]:
    """Start ``python -m`` with these words; it ends with this process unless `environment` says else (`exit_status`)."""
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, ENDS_WITH: str(os.getpid()), **environment},
        start_new_session=True,  # Ctrl-C is for the study, which then ends its processes
    )


def run_process(log: Path, argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a process of this module to its end; what it prints is added to its log.

    Raises:
        StageFailed: its exit status is not 0; with the last lines that it printed.
    """
    with open(log, "ab+", opener=no_links) as file:
        file.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} stepjepa {' '.join(argv)}\n".encode())
        file.flush()
        start = file.tell()
        process = start_process(["stepjepa.study.stages", *argv], environment, file)
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
            lines = [*dict.fromkeys(lines)][-5:]  # several processes may say the same
            how = f"exit status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"
            raise StageFailed(f"{how}; {log}: {' | '.join(lines) or 'it printed nothing'}")


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


def exit_status(name: str, work: Callable[[], object]) -> int:
    """Do the work of a process that `start_process` has started, and say why it failed."""
    end_with(os.environ.get(ENDS_WITH))
    try:
        work()
    except StepJepaError as error:
        print_error(f"stepjepa {name}: error: {error}")
        return error.status
    return 0


def _run_stage(argv: list[str]) -> None:
    if argv[0] == "launch":
        _launch(int(argv[1]), argv[2:])
    elif argv[0] == "score":
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


# Scoring


class Measured(NamedTuple):
    """What the geometry metrics read; `linear_map` is None where no metric asks for it, and below `MIN_ROWS` pairs."""

    numbers: GeometryNumbers
    linear_map: LinearMap | None


class GeometryMetric(NamedTuple):
    """A number of `Measured` with its direction; `read` gives None where there are too few pairs for it."""

    higher_is_better: bool
    read: Callable[[Measured], float | None]


def _map_fitted_error(measured: Measured) -> float | None:
    """A Frobenius norm, as in Table 14 of LLM-JEPA."""
    fitted = measured.linear_map
    if fitted is None or fitted.train_rows <= measured.numbers.width:  # the map fits every row, whatever the states are
        return None
    return fitted.train_error * fitted.train_rows**0.5


def _map_r2(measured: Measured) -> float | None:
    fitted = measured.linear_map
    return None if fitted is None else fitted.test_r2


GEOMETRY = {
    "cosine_gap": GeometryMetric(True, lambda one: one.numbers.pairs.gap),
    "retrieval_mrr": GeometryMetric(True, lambda one: one.numbers.pairs.mrr),
    "target_rank": GeometryMetric(True, lambda one: one.numbers.target.effective_rank),
    "difference_top_100": GeometryMetric(False, lambda one: one.numbers.difference_top_100),
    "map_fitted_error": GeometryMetric(False, _map_fitted_error),
    "map_r2": GeometryMetric(True, _map_r2),
}


def score_splits(folder: StudyRunFolder, splits: Sequence[str]) -> None:
    """Score a run's model on some splits, and leave a record of each.

    Raises:
        DataError: the folder has no plan of a run.
        ConfigError: see `score_model`.
    """
    plan = read_record(folder.plan)
    if plan is None:
        raise DataError(f"{folder.plan}: there is no plan of a run")
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    for split in splits:
        begin = time.perf_counter()
        rows = RowSource(plan["files"][split], plan["splits"].get(split, "test"))
        with explaining(f"evaluate: {{{_NAME.batch_size}: ...}} in the study", "start the study again"):
            values = score_model(folder.model, rows, plan["metrics"], chat=plan["chat"], **plan["evaluation"])
        write_record(folder.record(split), {"metrics": values, "seconds": time.perf_counter() - begin})
        print_text("  ".join([split, *(f"{name} {value}" for name, value in values.items())]))


def score_model(
    model_folder: Path,
    rows: RowSource,
    metrics: Mapping[str, Values],
    max_examples: int | None = None,
    batch_size: int = 32,
    max_new_tokens: int = 256,
    chat: Values | None = None,
) -> dict[str, float | None]:
    """The value of every metric on some rows, greedy decoding: those of answers as ``stepjepa evaluate`` has them.

    Args:
        model_folder: what training wrote, a model or an adapter.
        metrics: name -> options of the metric.
        chat: options of training that say how rows become chats and chats tokens.

    Returns:
        Metric -> value; None where the model gives no finite number.

    Raises:
        ConfigError, DataError: as `stepjepa.evaluation.run.evaluate_model`; weights that are not finite.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from stepjepa.data.tokens import Prompter
    from stepjepa.evaluation.harness import Harness, metrics_of
    from stepjepa.evaluation.options import HARNESS, HarnessOptions
    from stepjepa.evaluation.run import evaluate_model
    from stepjepa.generation.place import Place
    from stepjepa.modeling.load import check_finite
    from stepjepa.training.datasets import chat_tokenizer

    method = JEPAOptions(**(chat or {}))
    method.check()
    model: Any = AutoModelForCausalLM.from_pretrained(model_folder)
    check_finite(model, str(model_folder))
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = chat_tokenizer(AutoTokenizer.from_pretrained(model_folder), method)
    values, kwargs = dict[str, float | None](), method.chat_template_kwargs
    trained = Place(str(model_folder), Path(model_folder)).trained_ending
    # Metrics of states are read together where their views are the same, metrics of answers where they have no options.
    groups: dict[str, list[str]] = {}
    for name, options in metrics.items():
        together = name in GEOMETRY or not options  # tasks of the harness have some
        groups.setdefault(f"{name in GEOMETRY} {dict(options)}" if together else name, []).append(name)
    for names in groups.values():
        options = metrics[names[0]]
        if names[0] in GEOMETRY:
            views = JEPAOptions(**{**(chat or {}), **options}, predictors=0)
            values |= _geometry(model, tokenizer, rows, names, views, max_examples, batch_size)
            continue
        if names[0].startswith(HARNESS):
            harness, prompter = (
                Harness(HarnessOptions(**options)),
                Prompter(tokenizer, None, False, kwargs, None, trained),
            )
            task, *_ = harness.tasks
            made = harness.run(task, model, prompter, method.system_prompt, batch_size, max_examples)
            values[names[0]] = next(iter(metrics_of(task, made["results"]).values()))["value"]
            continue
        result = evaluate_model(
            model,
            tokenizer,
            rows,
            names,
            metric_options=options,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            system_prompt=method.system_prompt,
            chat_template_kwargs=kwargs,
            trained=trained,
            columns=method.columns,
            max_examples=max_examples,
            max_length=method.max_length,
        )
        values |= {name: result.value(name) for name in names}
    return {name: value if (value := values[name]) is not None and math.isfinite(value) else None for name in metrics}


def _geometry(
    model: Any,
    tokenizer: Any,
    rows: RowSource,
    names: Sequence[str],
    method: JEPAOptions,
    max_examples: int | None,
    batch_size: int,
) -> dict[str, float | None]:
    """The metrics of `GEOMETRY` in `names`, all of the views that `method` makes."""
    from stepjepa.analysis.geometry import MIN_ROWS, linear_map, measure_states
    from stepjepa.analysis.pairs import read_pairs
    from stepjepa.analysis.states import FINAL, StatesNotFinite, collect_states
    from stepjepa.modeling.forward import causal_lm
    from stepjepa.modeling.load import max_positions
    from stepjepa.training.datasets import make_renderer, settings_for

    method.check()
    settings = settings_for(rows, method, max_positions(causal_lm(model)))
    pairs = read_pairs(rows, tokenizer, make_renderer(tokenizer, method), settings, max_examples)
    pad = tokenizer.pad_token_id or 0
    try:
        states = collect_states(model, "the model", pairs, layers=[FINAL], pad_token_id=pad, batch_size=batch_size)
    except StatesNotFinite:  # it has diverged, as its other metrics show too
        return dict.fromkeys(names)
    source, target = states.layer(FINAL)
    numbers = measure_states(source, target)
    maps = any(name.startswith("map_") for name in names) and len(source) >= MIN_ROWS  # the map costs most
    measured = Measured(numbers, linear_map(source, target) if maps else None)
    return {name: GEOMETRY[name].read(measured) for name in names}


if __name__ == "__main__":
    sys.exit(exit_status(sys.argv[1], lambda: _run_stage(sys.argv[1:])))
