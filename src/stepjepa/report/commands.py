"""The commands with which a page says how to get what it lacks: such as can be typed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from stepjepa.data.suggest import suggested_metric
from stepjepa.report.reading import Found, Run, StudyFolder

_WEIGHTS = ("model*.safetensors", "adapter_model.safetensors", "pytorch_model*.bin")
_TEST_FILE = "TEST_FILE"


def has_weights(run: Run) -> bool:
    """Whether the run's model lies in its folder: it has ended, and nobody deleted it."""
    return any(file.is_file() for pattern in _WEIGHTS for file in run.path.glob(pattern))


def train_again(run: Run) -> str:
    """For a run without a log."""
    files = "metrics.json, or a checkpoint's trainer_state.json"
    return f"{run.label}: no log of a training ({files}). stepjepa train writes it."


def evaluate_it(run: Run, found: Found) -> str:
    """For a run without an evaluation."""
    missing = f"No evaluation of {run.label} yet"
    if not has_weights(run):
        why = (
            "it has not ended; the same command with --resume_from_checkpoint true goes on"
            if run.unfinished
            else "its weights are not there"
        )
        return f"{missing}: {why}."
    return f"{missing}: {_evaluate(run, _test_file([run], found))}"


def answers_of_study(study: StudyFolder) -> str:
    """For a study, which keeps scores alone."""
    said = "A study keeps the scores of its runs, not their answers"
    kept = [run for run in study.runs if has_weights(run)]
    if not kept:
        return f"{said}, and no weights are there to answer with (keep_models: false deletes them, true keeps them)."
    file = _test_file(kept, None)
    return f"{said}. For those: {_evaluate(kept[0], file)}, for two models, then stepjepa report MODEL_A MODEL_B."


def measure_geometry(found: Found) -> str:
    """For a page without figures of ``stepjepa analyze``."""
    every = found.study.runs if found.study else found.runs
    kept = [run for run in every if has_weights(run)]
    if every and not kept:
        return "stepjepa analyze measures the states of models, and no weights are there."
    words = " ".join(shlex.quote(str(run.path)) for run in kept[:2]) or "RUN"
    file = shlex.quote(_test_file(kept, found))
    return (
        f"stepjepa analyze {file} --models {words} --output_dir GEOMETRY, then stepjepa report ... --geometry GEOMETRY"
    )


def _evaluate(run: Run, file: str) -> str:
    known = file if file != _TEST_FILE else next(iter(_local_files(run, "train_file")), None)
    metrics = run.settings.get("eval_metrics")
    metric = metrics[0] if isinstance(metrics, list) and metrics else suggested_metric(known)
    return f"stepjepa evaluate {shlex.quote(str(run.path))} {shlex.quote(file)} --metric {shlex.quote(str(metric))}"


def _test_file(runs: Sequence[Run], found: Found | None) -> str:
    """The held-out file that the runs were made with, where it still lies there."""
    for run in runs:
        beside = run.path.parent / "test.jsonl"
        if found is not None and found.demo and beside.is_file():
            return str(beside)
        for file in _local_files(run, "eval_file"):
            return file
    return _TEST_FILE


def _local_files(run: Run, name: str) -> list[str]:
    value = run.settings.get(name)
    several = value if isinstance(value, list) else [value]
    return [one for one in several if isinstance(one, str) and "\0" not in one and len(one) < 4096 and _is_file(one)]


def _is_file(name: str) -> bool:
    try:
        return Path(name).expanduser().is_file()
    except (OSError, RuntimeError):
        return False
