"""Options of ``stepjepa evaluate``, apart from the work so that ``--help`` loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stepjepa.config.option import check_at_least, option
from stepjepa.errors import ConfigError
from stepjepa.evaluation.metrics.registry import METRICS, MODEL_METRICS

AS_TRAINED = "as_trained"
NLL = "answer_nll"
_MODEL, _DATA, _METRIC, _GENERATION, _OUTPUT, _ANALYSIS = "model", "data", "metric", "generation", "output", "analysis"
_AT_LEAST = {"max_new_tokens": 1, "temperature": 0, "show": 0, "batch_size": 1, "max_examples": 1, "max_length": 1}


@dataclass
class EvaluateOptions:
    """Which model answers which questions, by which measure, and where the answers go."""

    model_name: str | None = option(
        None, "The model: what stepjepa train has written (adapters too), any local folder, or a Hub id.", _MODEL
    )
    no_lora: bool = option(False, "Of a LoRA adapter, evaluate the base model alone.", _MODEL)
    backend: Literal["transformers", "vllm"] = option("transformers", "What generates.", _MODEL)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto", "Dtype of the weights; auto is what they were saved in.", _MODEL
    )
    attn_implementation: str | None = option(None, "Attention kernel of transformers, such as sdpa or eager.", _MODEL)
    trust_remote_code: bool = option(False, "Run model code that comes with the weights.", _MODEL)
    vllm_options: dict[str, Any] | None = option(
        None, "Further arguments of vllm.LLM, as in '{\"tensor_parallel_size\": 4}'.", _MODEL
    )

    test_file: str | None = option(None, "The questions: JSONL, Parquet, CSV or a Hub data set.", _DATA)
    dataset_split: str = option("test", "Split of a Hub data set.", _DATA)
    max_examples: int | None = option(None, "Evaluate on the first so many rows only.", _DATA)
    source_column: str | None = option(None, "Column with the question, for data sets of pairs.", _DATA)
    target_column: str | None = option(None, "Column with the reference answer.", _DATA)
    choice_column: str | None = option(
        None, "Column with the index of the right text, where target_column holds a list.", _DATA
    )
    system_prompt: str | None = option(
        AS_TRAINED,
        "System message of every question; none leaves it out. as_trained is the one that the model was trained with, as "
        "its folder records it, else the file's own.",
        _DATA,
    )
    use_test_prompts: bool = option(False, "Keep the file's own system messages.", _DATA)
    chat_template: str | None = option(None, "File with a Jinja chat template to use instead of the model's.", _DATA)
    chat_template_kwargs: dict[str, Any] | None = option(
        None, "What the chat template takes beside the messages. Default: what training was given.", _DATA
    )
    plain: bool = option(False, "No chat template: the messages' contents, a line break between them.", _DATA)

    metric: list[str] | None = option(
        None,
        f"One or several of {', '.join([*METRICS, *MODEL_METRICS])}, or module:function. The first one decides what is "
        "called correct; with --analyze, the one to go by.",
        _METRIC,
    )
    metric_options: dict[str, Any] | None = option(
        None, 'Options of the metrics, as in \'{"db_folder": "spider/database"}\'.', _METRIC
    )
    max_length: int | None = option(
        None, "answer_nll: longest chat in tokens. Default: that of training; else no limit but the model's.", _METRIC
    )

    max_new_tokens: int = option(512, "Longest response in tokens.", _GENERATION)
    batch_size: int | None = option(
        None, "Questions a batch. Default: 16 with transformers; 256 handed over at once with vllm.", _GENERATION
    )
    temperature: float = option(0.0, "0 takes the likeliest token; above 0 samples at this temperature.", _GENERATION)
    top_p: float = option(1.0, "Share of the probability mass to sample from.", _GENERATION)
    seed: int = option(42, "Seed of the sampling.", _GENERATION)

    output_dir: str | None = option(
        None,
        "Folder for predictions.jsonl and metrics.json. Default: evaluation-<data> in the model's folder; for a Hub id "
        "evaluation-<model>-<data> here.",
        _OUTPUT,
    )
    output_file: str | None = option(
        None, "File for the predictions (.jsonl, or .json for one array); the metrics are written beside it.", _OUTPUT
    )
    overwrite_output_dir: bool = option(False, "Replace what an earlier evaluation has written there.", _OUTPUT)
    json: bool = option(False, "Print the result as one JSON object.", _OUTPUT)

    analyze: list[str] | None = option(
        None, "Look into one file of predictions, or compare two; needs no model.", _ANALYSIS
    )
    show: int = option(2, "Examples of each kind to show with --analyze.", _ANALYSIS)

    def check(self) -> None:
        """Check the values and what they are together.

        Raises:
            ConfigError: a value that cannot be used; the message names the option.
        """
        for name in ("model_name", "test_file"):
            if not getattr(self, name):
                raise ConfigError(f"--{name} is missing; write: stepjepa evaluate RUN test.jsonl --metric NAME")
        if not self.metric:
            known = ", ".join([*METRICS, *MODEL_METRICS])
            raise ConfigError(f"--metric is missing; choose one or several of {known}, or module:function")
        check_at_least(self, _AT_LEAST)
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if (self.source_column is None) != (self.target_column is None):
            raise ConfigError("--source_column and --target_column go together; give both or none")
        if self.choice_column is not None and self.target_column is None:
            raise ConfigError("--choice_column needs --source_column and --target_column")
        if self.use_test_prompts and self.system_prompt != AS_TRAINED:
            raise ConfigError("--use_test_prompts keeps the file's system messages, and --system_prompt replaces them")
        if self.plain and self.chat_template:
            raise ConfigError("--plain and --chat_template are two templates; keep one of them")
        if self.output_dir is not None and self.output_file is not None:
            raise ConfigError("--output_file names the place by itself; leave --output_dir out")
        if self.output_file is not None and Path(self.output_file).suffix not in (".json", ".jsonl"):
            raise ConfigError(f"--output_file {self.output_file}: the name must end in .jsonl or .json")
        if self.backend == "vllm" and NLL in self.metric:
            raise ConfigError(f"--metric {NLL} needs --backend transformers: vLLM gives no states")

    @property
    def generates(self) -> bool:
        """Whether any metric reads a generated text."""
        return any(name != NLL for name in self.metric or ())


def listed_metrics() -> str:
    """Every metric with what it measures, a line each."""
    every = {**{name: entry.help for name, entry in METRICS.items()}, **MODEL_METRICS}
    width = max(map(len, every)) + 2
    own = "module:function".ljust(width) + " f(generated, reference, row) of your own, True, False or 0 to 1"
    return "\n".join([*(f"  {name:<{width}} {text}" for name, text in every.items()), f"  {own}"])
