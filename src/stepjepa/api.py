"""The public functions, one per command, with the command's option names and defaults.

``str`` of a result is the text that the command prints. This module connects packages that do not import each other.

Importing it loads neither torch nor transformers.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepjepa.config.spellings import checked_options

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Unpack

    from stepjepa.analysis.options import AnalysisResult
    from stepjepa.data.prepare import PrepareResult
    from stepjepa.evaluation.predictions import PredictionAnalysis, PredictionComparison
    from stepjepa.evaluation.run import AnswerScorer
    from stepjepa.evaluation.score import EvaluationResult
    from stepjepa.generation.solve import GenerationResult
    from stepjepa.inspect.check import check
    from stepjepa.inspect.view import inspect
    from stepjepa.keywords import (
        AnalyzeKeywords,
        DemoKeywords,
        DoctorKeywords,
        EvaluateKeywords,
        ExportKeywords,
        GenerateKeywords,
        PrepareKeywords,
        StudyKeywords,
        TrainKeywords,
    )
    from stepjepa.modeling.export import Export
    from stepjepa.report.run import report
    from stepjepa.study.run import DemoResult, StudyResult
    from stepjepa.training.config import JEPAConfig
    from stepjepa.training.doctor import Diagnosis
    from stepjepa.training.options import RunOptions
    from stepjepa.training.run import TrainResult

__all__ = [
    "analyze",
    "check",
    "compare",
    "demo",
    "doctor",
    "evaluate",
    "export",
    "generate",
    "inspect",
    "prepare",
    "report",
    "study",
    "train",
]

# Public functions that need no wrapper here; they are imported from their modules on first use.
_MODULES = {
    "check": "stepjepa.inspect.check",
    "inspect": "stepjepa.inspect.view",
    "report": "stepjepa.report.run",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


# The functions below import in their bodies: the options if they load without torch, then the code that loads torch.


def train(**options: Unpack[TrainKeywords]) -> TrainResult:
    """Train a model: ``stepjepa train``.

    Args:
        options: the options of ``stepjepa train`` by name.

    Raises:
        ConfigError, DataError: an option or the data cannot be used; nothing was written.
        RunError: training failed: a loss is not finite, a file cannot be written, or memory ran out.

    Examples:
        >>> run = train(train_file=["rows.jsonl"], model_name="mini", objective="step_jepa", output_dir="run")
        >>> run.metrics["lm_loss"], run.output_dir
    """
    from stepjepa.config.option import Names
    from stepjepa.config.parser import build, command_line
    from stepjepa.config.spellings import by_our_names
    from stepjepa.errors import explaining
    from stepjepa.training.config import JEPAConfig
    from stepjepa.training.options import RunOptions
    from stepjepa.training.run import AGAIN, run_notes, run_training
    from stepjepa.utils.terminal import is_main_process, say

    name = Names(JEPAConfig, RunOptions)
    given = by_our_names(options, RunOptions, JEPAConfig)
    # Each Ray worker calls this function again, without `ray_workers`.
    if given.get(name.ray_workers) is not None:
        return _train_in_ray(given, name)
    run, config = build((RunOptions, JEPAConfig), given)
    if is_main_process():
        for line in run_notes(run, config, given):
            say(f"note   {line}")
    # Made before `debug_level` changes an option, so that the record has the options as the user wrote them.
    command = command_line("train", given, run, config)
    if run.debug_level >= 1 and name.logging_steps not in given:
        config.logging_steps = 1
    if run.debug_level >= 7 and is_main_process():
        _show_first_row(run, config)
    # If memory runs out, the error names the options that reduce its use.
    batch = f"--{name.per_device_train_batch_size} (and raise --{name.gradient_accumulation_steps})"
    with explaining(f"{batch} or --{name.max_length}", AGAIN):
        result = run_training(run, config, _answer_scorer(run, config), command)
    # A run that was already complete has no trainer, and no commands are suggested after it.
    if result.trainer is None:
        return result
    return dataclasses.replace(
        result, text=f"{result.text}\n{_next_commands(run, result.output_dir)}"
    )


def _train_in_ray(options: dict[str, Any], name: Any) -> TrainResult:
    from stepjepa.config.option import options_of
    from stepjepa.training.options import RunOptions
    from stepjepa.utils.parallel import in_workers

    workers = options.pop(name.ray_workers)
    options_of(RunOptions)[name.ray_workers].check(workers)

    def work() -> TrainResult:
        from stepjepa.training.run import leave_process_group

        # The result is sent to the calling process, but the trainer and its model stay in this one.
        result = dataclasses.replace(train(**options), trainer=None)
        leave_process_group()
        return result

    resumes = str(options.get(name.resume_from_checkpoint)).lower() == "true"
    return in_workers(work, workers, name.ray_workers, resumes)


def _show_first_row(run: RunOptions, config: JEPAConfig) -> None:
    """Draw the first row; if it cannot be drawn, print a note."""
    from stepjepa.errors import StepJepaError
    from stepjepa.inspect.view import show_row
    from stepjepa.training.options import method_of
    from stepjepa.utils.terminal import print_drawn, print_text

    method = vars(method_of(config))
    try:
        print_drawn(
            str(show_row((run.train_file or [""])[0], run.model_name, seed=config.seed, **method))
        )
    except StepJepaError as error:
        print_text(f"note   the first row cannot be shown: {error}")


def _answer_scorer(run: RunOptions, config: JEPAConfig) -> AnswerScorer | None:
    """The scorer of answers for evaluations during training; None without metrics or evaluation data.

    Raises:
        ConfigError: an unknown metric.
    """
    if not run.eval_metrics or not run.eval_file:
        return None
    from stepjepa.data.sources import RowSource
    from stepjepa.evaluation.run import AnswerScorer

    return AnswerScorer(
        RowSource(run.eval_file, run.eval_split),
        run.eval_metrics,
        run.eval_samples,
        columns=config.columns,
        max_new_tokens=run.eval_max_new_tokens,
        batch_size=config.per_device_eval_batch_size,
        system_prompt=config.system_prompt,
        chat_template_kwargs=config.chat_template_kwargs,
    )


def _next_commands(run: RunOptions, output: Path) -> str:
    """The commands suggested after a run, with the run's metrics if it has any."""
    from stepjepa.config.option import Names
    from stepjepa.evaluation.options import EvaluateOptions

    name, folder = Names(EvaluateOptions), shlex.quote(str(output))
    metrics = run.eval_metrics or ["METRIC"]
    test = shlex.quote(run.eval_file) if run.eval_file else "TEST_FILE"
    what = f"--{name.test_file} {test} --{name.metric} {' '.join(metrics)}"
    return f"next   stepjepa evaluate --{name.model_name} {folder} {what}\n       stepjepa report {folder}"


def export(
    checkpoint: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    **options: Unpack[ExportKeywords],
) -> Export:
    """Write a checkpoint as the final model of its run: ``stepjepa export``.

    Args:
        checkpoint: a run's checkpoint, or the folder of an adapter.
        output_dir: the folder to write.
        options: the other options of ``stepjepa export`` by name.

    Raises:
        ConfigError: the checkpoint cannot be read, or the folder cannot be written to.

    Examples:
        >>> export("run/checkpoint-500", "exported", merge_lora=True)
    """
    from stepjepa.config.option import Names
    from stepjepa.modeling.options import ExportOptions

    name = Names(ExportOptions)
    paths = {name.checkpoint: checkpoint, name.output_dir: output_dir}
    checked = checked_options(ExportOptions, {**options, **paths})
    from stepjepa.modeling.export import export_checkpoint

    return export_checkpoint(checked)


def evaluate(**options: Unpack[EvaluateKeywords]) -> EvaluationResult:
    """Let a model answer the questions in a file, and score the answers: ``stepjepa evaluate``.

    Args:
        options: the options of ``stepjepa evaluate`` by name. For a model in memory, see
            `stepjepa.evaluation.run.evaluate_model`.

    Raises:
        StepJepaError: an option, the model or the data cannot be used; finished answers are kept, and the same call resumes.

    Examples:
        >>> result = evaluate(model_name="run", test_file="test.jsonl", metric=["gsm8k"])
        >>> result.value("gsm8k"), result.metrics["gsm8k"]["low"]
    """
    from stepjepa.evaluation.options import EvaluateOptions

    checked = checked_options(EvaluateOptions, options)
    # Tasks of lm-evaluation-harness have their own questions and metrics.
    if checked.harness is not None:
        from stepjepa.evaluation.harness import evaluate_harness

        return evaluate_harness(checked)
    from stepjepa.evaluation.run import evaluate as run

    return run(checked)


def compare(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str] | None = None,
    *,
    show: int = 2,
    metric: str | None = None,
) -> PredictionAnalysis | PredictionComparison:
    """Analyze a file of predictions, or compare two: ``stepjepa evaluate --analyze``.

    Args:
        first: a file of predictions; in a comparison, those of the baseline.
        second: the other model's predictions for the same questions.
        show: with one file, the number of examples shown for each kind of error.
        metric: the metric that decides which answers are right; by default the first metric of the evaluation.

    Raises:
        DataError: a file cannot be read, or the two files have different questions or metrics.

    Examples:
        >>> print(compare("runs/a/evaluation-test/predictions.jsonl", "runs/b/evaluation-test/predictions.jsonl"))
    """
    from pathlib import Path

    from stepjepa.evaluation.predictions import analyze_predictions
    from stepjepa.evaluation.predictions import compare as run

    if second is None:
        return analyze_predictions(Path(first), show, metric)
    return run(Path(first), Path(second), metric)


def generate(**options: Unpack[GenerateKeywords]) -> GenerationResult:
    """Let a model answer the questions in a file, and keep the responses that are right: ``stepjepa generate``.

    Args:
        options: the options of ``stepjepa generate`` by name.

    Raises:
        StepJepaError: an option, the model or the data cannot be used; finished responses are kept, and the same call
            resumes.

    Examples:
        >>> print(generate(file="train.jsonl", model_name="run", output_file="solved.jsonl"))
    """
    from stepjepa.generation.options import GenerateOptions

    checked = checked_options(GenerateOptions, options)
    from stepjepa.generation.solve import generate as run

    return run(checked)


def doctor(**options: Unpack[DoctorKeywords]) -> Diagnosis:
    """Measure the exactness, speed and memory of a training step on this machine: ``stepjepa doctor``.

    It tries every combination of attention implementation and dtype.

    Args:
        options: the options of ``stepjepa doctor`` by name.

    Raises:
        ConfigError, DataError: the model or the data cannot be used.

    Examples:
        >>> print(doctor(model_name="mini"))
    """
    from stepjepa.training.options import DoctorOptions

    checked = checked_options(DoctorOptions, options)
    from stepjepa.training.doctor import doctor as run

    return run(checked)


def analyze(**options: Unpack[AnalyzeKeywords]) -> AnalysisResult:
    """Measure the geometry of source and target views in models: ``stepjepa analyze``.

    Args:
        options: the options of ``stepjepa analyze`` by name.

    Raises:
        StepJepaError: an option, a model or the data cannot be used; the files of an earlier analysis are left unchanged.

    Examples:
        >>> print(analyze(file="test.jsonl", models=["runs/regular", "runs/step"], objective="step_jepa"))
    """
    from stepjepa.analysis.options import AnalyzeOptions
    from stepjepa.config.option import Names
    from stepjepa.errors import explaining

    name = Names(AnalyzeOptions)
    checked = checked_options(AnalyzeOptions, options)
    from stepjepa.analysis.run import analyze as run

    # `options` has only what the user has set; all other options take the values that each model was trained with.
    with explaining(f"--{name.batch_size} or --{name.max_length}", "run the same command again"):
        return run(checked, options)


def prepare(data: object = None, **options: Unpack[PrepareKeywords]) -> PrepareResult:
    """Turn raw questions and answers into chat rows with steps: ``stepjepa prepare``.

    Args:
        data: a file, the name of a data set on the Hub, a `datasets.Dataset`, or a list of rows.
        options: the options of ``stepjepa prepare`` by name.

    Raises:
        ConfigError: an option cannot be used, or an output file already exists.
        DataError: the data cannot be read, or no row can be kept.

    Examples:
        >>> print(prepare("gsm8k.jsonl", output_file="train.jsonl", valid_ratio=0.05))
    """
    from stepjepa.data.options import PrepareOptions
    from stepjepa.data.prepare import prepare as run

    return run(checked_options(PrepareOptions, options), data)


def study(
    file: str | os.PathLike[str] | None = None, **options: Unpack[StudyKeywords]
) -> StudyResult:
    """Train and compare the arms of a study over paired seeds, or resume a study: ``stepjepa study``.

    Args:
        file: a study's YAML file, or the name of a recipe.
        options: the options of ``stepjepa study`` by name.

    Raises:
        ConfigError, DataError: the study cannot be used; no run was started.
        RunError: the disk is full, or memory ran out.

    Examples:
        >>> print(study("study.yaml", jobs=2))
    """
    from stepjepa.study.spec import StudyOptions

    named = {} if file is None else {"file": file}
    checked = checked_options(StudyOptions, {**named, **options})
    from stepjepa.study.run import study as run

    return run(checked)


def demo(**options: Unpack[DemoKeywords]) -> DemoResult:
    """Train a small model with and without the JEPA objective on built-in data, and compare the two: ``stepjepa demo``.

    Args:
        options: the options of ``stepjepa demo`` by name.

    Raises:
        ConfigError: the folder contains something other than a study.
        StepJepaError: an arm failed.

    Examples:
        >>> print(demo(output_dir="runs/demo", seed=1))
    """
    from stepjepa.study.spec import DemoOptions

    checked = checked_options(DemoOptions, options)
    from stepjepa.report.run import report
    from stepjepa.study.run import demo as run

    result = run(checked)
    # The page is added here because the report package imports the study package, which must not import it back.
    page = report(folders=[checked.output_dir], overwrite=True)
    result.answer, result.page = page.answer, page.path
    return result
