"""Options of ``stepjepa evaluate``, without torch so that ``--help`` is quick."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stepjepa.config.option import option, options_of, unread_options
from stepjepa.errors import ConfigError
from stepjepa.evaluation.metrics.registry import METRICS, MODEL_METRICS, NLL
from stepjepa.generation.options import SAMPLING, GeneratorOptions

AS_TRAINED = "as_trained"
_MODEL, _DATA, _METRIC, _OUTPUT, _ANALYSIS = "model", "data", "metric", "output", "analysis"
_NAMES = ", ".join([*METRICS, *MODEL_METRICS])


@dataclass
class EvaluateOptions(GeneratorOptions):
    """Which model answers which questions, by which measure, and where the answers go."""

    model_name: str | None = option(
        None,
        "The model: what stepjepa train has written (adapters too), any local folder, or a Hub id.",
        _MODEL,
        resume=True,
    )
    no_lora: bool = option(False, "Of a LoRA adapter, evaluate the base model alone.", _MODEL)
    backend: Literal["transformers", "vllm"] = option("transformers", "What generates.", _MODEL)

    test_file: str | None = option(None, "The questions: JSONL, Parquet, CSV or a Hub data set.", _DATA, resume=True)
    dataset_split: str = option("test", "Split of a Hub data set.", _DATA, resume=True)
    max_examples: int | None = option(None, "Evaluate on the first so many rows only.", _DATA, at_least=1)
    source_column: str | None = option(None, "Column with the question, for data sets of pairs.", _DATA, resume=True)
    target_column: str | None = option(None, "Column with the reference answer.", _DATA, resume=True)
    choice_column: str | None = option(
        None, "Column with the index of the right text, where target_column holds a list.", _DATA, resume=True
    )
    system_prompt: str | None = option(
        AS_TRAINED,
        "System message of every question; none leaves it out. as_trained is the one that the model was trained with, as "
        "its folder records it, else the file's own.",
        _DATA,
        resume=True,
    )
    use_test_prompts: bool = option(False, "Keep the file's own system messages.", _DATA, resume=True)
    chat_template_kwargs: dict[str, Any] | None = option(
        None, "What the chat template takes in addition to the messages. Default: what training was given.", _DATA
    )

    metric: list[str] | None = option(
        None,
        f"One or several of {_NAMES}, or module:function. The first one decides what is called correct; with --analyze, "
        "the one to go by.",
        _METRIC,
        resume=True,
    )
    metric_options: dict[str, Any] | None = option(
        None, 'Options of the metrics, as in \'{"db_folder": "spider/database"}\'.', _METRIC, resume=True
    )
    max_length: int | None = option(
        None,
        "answer_nll: longest chat in tokens. Default: that of training; else no limit but the model's.",
        _METRIC,
        at_least=1,
    )

    output_dir: str | None = option(
        None,
        "Folder for predictions.jsonl and metrics.json. Default: evaluation-<data> in the model's folder; for a Hub id "
        "evaluation-<model>-<data> here.",
        _OUTPUT,
        resume=True,
    )
    output_file: str | None = option(
        None,
        "File for the predictions (.jsonl, or .json for one array); the metrics are written next to it.",
        _OUTPUT,
        resume=True,
    )
    overwrite_output_dir: bool = option(
        False, "Replace what an earlier evaluation has written there.", _OUTPUT, resume=True
    )
    json: bool = option(False, "Print the result as one JSON object.", _OUTPUT, resume=True)

    analyze: list[str] | None = option(
        None, "Look into one file of predictions, or compare two; needs no model.", _ANALYSIS, resume=True
    )
    show: int = option(
        2, "Examples of each kind to show with --analyze.", _ANALYSIS, at_least=0, needs={"analyze": True}, resume=True
    )

    def check(self) -> None:
        """As `GeneratorOptions.check`.

        Raises:
            ConfigError: a value that cannot be used; the message names the option.
        """
        super().check()
        if self.analyze is not None:
            if not 1 <= len(self.analyze) <= 2:
                raise ConfigError(
                    f"--analyze takes one file of predictions, or two to compare; got {len(self.analyze)}"
                )
            if self.metric is not None and len(self.metric) > 1:
                raise ConfigError("--analyze goes by one --metric of those that the predictions hold")
            return
        if not self.model_name or not self.test_file:
            missing = "test_file" if self.model_name else "model_name"
            raise ConfigError(f"--{missing} is missing; write: stepjepa evaluate RUN test.jsonl --metric NAME")
        if not self.metric:
            raise ConfigError(f"--metric is missing; choose one or several of {_NAMES}, or module:function")
        if (self.source_column is None) != (self.target_column is None):
            raise ConfigError("--source_column and --target_column go together; give both or none")
        if self.choice_column is not None and self.target_column is None:
            raise ConfigError("--choice_column needs --source_column and --target_column")
        if self.use_test_prompts and self.system_prompt != AS_TRAINED:
            raise ConfigError("--use_test_prompts keeps the file's system messages, and --system_prompt replaces them")
        if self.output_dir is not None and self.output_file is not None:
            raise ConfigError("--output_file names the predictions by itself; leave --output_dir out")
        if self.output_file is not None and Path(self.output_file).suffix not in (".json", ".jsonl"):
            raise ConfigError(f"--output_file {self.output_file}: the name must end in .jsonl or .json")
        if self.output_file is not None and Path(self.output_file).is_dir():
            raise ConfigError(f"--output_file {self.output_file}: is a folder; see --output_dir")
        if self.backend == "vllm" and NLL in self.metric:
            raise ConfigError(f"--metric {NLL} needs --backend transformers: vLLM gives no states")

    @property
    def generates(self) -> bool:
        """Whether any metric reads a generated text."""
        return any(name != NLL for name in self.metric or ())

    def without_effect(self) -> Iterator[str]:
        """A line for each option with a value of its own that changes nothing."""
        known = options_of(EvaluateOptions)
        own = [name for name, one in known.items() if getattr(self, name) != one.default]
        if self.analyze is not None:
            used = {"metric", "json", *(name for name, one in known.items() if one.group == _ANALYSIS)}
            yield from (f"note     --{name} has no effect with --analyze" for name in own if name not in used)
            return
        silent = [name for name in own if known[name].group == SAMPLING and not self.generates]
        yield from (f"note     --{name} has no effect: --metric {NLL} generates nothing" for name in silent)
        yield from (f"note     {one}" for one in unread_options(self, set(own).difference(silent)))
        if self.max_length is not None and NLL not in (self.metric or ()):
            yield f"note     --max_length has no effect without --metric {NLL}"
