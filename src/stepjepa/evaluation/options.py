"""Options of ``stepjepa evaluate``, without torch so that ``--help`` is quick."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stepjepa.config.option import Names, option, unread_options
from stepjepa.data.options import ColumnOptions
from stepjepa.errors import ConfigError
from stepjepa.evaluation.metrics.base import METRICS, MODEL_METRICS, model_metrics
from stepjepa.generation.options import GeneratorOptions

# The default of --system_prompt: the message used in training, as the model's folder records it.
AS_TRAINED = "as_trained"
# Groups of the options in --help.
_MODEL = "model"
_DATA = "data"
_METRIC = "metric"
_OUTPUT = "output"
_ANALYSIS = "analysis"
_HARNESS = "harness"
# Names of metrics, as help and messages list them.
_KNOWN = f"one or several of {', '.join([*METRICS, *MODEL_METRICS])}, or module:function"


@dataclass
class EvaluateOptions(GeneratorOptions, ColumnOptions):
    """The model, the questions, the metrics, and the output files."""

    model_name: str | None = option(
        None,
        "The model: the folder of a run or adapter, any other local folder, or a Hub id.",
        _MODEL,
        resume=True,
        aliases=("model_path",),
    )
    no_lora: bool = option(False, "For a LoRA adapter, evaluate only the base model.", _MODEL)
    backend: Literal["transformers", "vllm"] = option("transformers", "Generation backend.", _MODEL)

    test_file: str | None = option(
        None, "The questions: JSONL, Parquet, CSV or a Hub data set.", _DATA, resume=True
    )
    dataset_split: str = option("test", "Split of a Hub data set.", _DATA, resume=True)
    max_examples: int | None = option(None, "Evaluate only the first N rows.", _DATA, at_least=1)
    system_prompt: str | None = option(
        AS_TRAINED,
        "System message for every question; none leaves it out. as_trained is the message used in training, if the model's "
        "folder records it, else the file's own.",
        _DATA,
        resume=True,
    )
    use_test_prompts: bool = option(
        False, "Keep the file's own system messages.", _DATA, resume=True
    )
    chat_template_kwargs: dict[str, Any] | None = option(
        None,
        "Further arguments of the chat template. Default: those used in training.",
        _DATA,
    )

    metric: list[str] | None = option(
        None,
        f"{_KNOWN.capitalize()}. The first decides which answers are correct; with --analyze, the metric to compare by.",
        _METRIC,
        resume=True,
    )
    metric_options: dict[str, Any] | None = option(
        None,
        'Options of the metrics, such as \'{"db_folder": "spider/database"}\'.',
        _METRIC,
        resume=True,
    )
    max_length: int | None = option(
        None,
        "answer_nll: longest chat in tokens. Default: as in training, else the model's limit.",
        _METRIC,
        at_least=1,
    )

    output_dir: str | None = option(
        None,
        "Folder for predictions.jsonl and metrics.json. Default: evaluation-<data> in the model's folder; for a Hub id "
        "evaluation-<model>-<data> in the working directory.",
        _OUTPUT,
        resume=True,
    )
    output_file: str | None = option(
        None,
        "File for the predictions (.jsonl, or .json for a single array); the metrics are written next to it.",
        _OUTPUT,
        resume=True,
    )
    overwrite_output_dir: bool = option(
        False, "Replace the files of an earlier evaluation.", _OUTPUT, resume=True
    )
    json: bool = option(False, "Print the result as one JSON object.", _OUTPUT, resume=True)

    analyze: list[str] | None = option(
        None,
        "Analyze one file of predictions, or compare two; needs no model.",
        _ANALYSIS,
        resume=True,
    )
    show: int = option(
        2,
        "With --analyze and one file: number of examples to show per kind of error.",
        _ANALYSIS,
        at_least=0,
        needs={"analyze": True},
        resume=True,
    )

    harness: list[str] | None = option(
        None,
        "Tasks of the lm-evaluation-harness to run instead of a file, such as mmlu,ifeval.",
        _HARNESS,
        resume=True,
    )
    harness_include: str | None = option(
        None, "Folder with additional tasks (YAML).", _HARNESS, needs={"harness": True}, resume=True
    )
    harness_fewshot: int | None = option(
        None, "Number of few-shot examples per question. Default: the task's own.", _HARNESS, at_least=0,
        needs={"harness": True},
    )  # fmt: skip

    def check(self) -> None:
        """As `Topic.check`; raises ConfigError."""
        # --harness is checked first, because the other checks would require a file that the harness does not read.
        if self.harness is not None:
            self._check_harness()
        super().check()
        if self.analyze is not None:
            if not 1 <= len(self.analyze) <= 2:
                what = "one file of predictions, or two to compare"
                raise ConfigError(f"--{_NAME.analyze} takes {what}; got {len(self.analyze)}")
        elif self.harness is None:
            self._check_file()

    def _check_harness(self) -> None:
        # Options of an evaluation with a file, which the harness does not read.
        excluded = [
            name
            for name in (_NAME.test_file, _NAME.metric, _NAME.output_file, _NAME.draft_tokens)
            if getattr(self, name)
        ]
        if excluded or not self.model_name or self.backend != "transformers":
            what = f"write: stepjepa evaluate RUN --{_NAME.harness} TASK"
            if excluded:
                what = f"leave --{excluded[0]} out"
            raise ConfigError(
                f"--{_NAME.harness} runs only the harness's own tasks, with transformers; {what}"
            )

    def _check_file(self) -> None:
        missing = [
            name
            for name in (_NAME.model_name, _NAME.test_file, _NAME.metric)
            if not getattr(self, name)
        ]
        if missing:
            example = (
                f"write: stepjepa evaluate RUN test.jsonl --{_NAME.metric} NAME; choose {_KNOWN}"
            )
            raise ConfigError(f"--{missing[0]} is missing; {example}")
        ColumnOptions.check(self)
        if self.use_test_prompts and self.system_prompt != AS_TRAINED:
            keeps = f"--{_NAME.use_test_prompts} keeps the file's system messages"
            raise ConfigError(f"{keeps}, and --{_NAME.system_prompt} replaces them")
        if self.output_file is not None:
            file = f"--{_NAME.output_file} {self.output_file}"
            if self.output_dir is not None:
                raise ConfigError(
                    f"{file} already sets where the predictions go; leave --{_NAME.output_dir} out"
                )
            if Path(self.output_file).suffix not in (".json", ".jsonl"):
                raise ConfigError(f"{file}: the file name must end in .jsonl or .json")
        likelihoods = model_metrics(self.metric)
        if self.backend == "vllm" and likelihoods:
            raise ConfigError(
                f"{likelihoods[0]} needs --{_NAME.backend} transformers: vLLM does not return hidden states"
            )

    def notes(self) -> list[str]:
        """A line for each option that was set but has no effect in combination with the others."""
        return [f"note     {unread}" for unread in unread_options(self, vars(self))]


_NAME = Names(EvaluateOptions)
