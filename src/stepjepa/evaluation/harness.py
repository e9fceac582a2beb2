"""``stepjepa evaluate --harness``: tasks of the lm-evaluation-harness, asked with the chat template and system message of
the training. Each is an evaluation with files of its own, which reports and comparisons read as any other.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from numbers import Real
from typing import Any

from torch import nn
from transformers import GenerationConfig

from stepjepa.config.option import Names
from stepjepa.config.values import did_you_mean
from stepjepa.data.tokens import Prompter
from stepjepa.errors import ConfigError, said
from stepjepa.evaluation import files
from stepjepa.evaluation.options import EvaluateOptions, HarnessOptions
from stepjepa.evaluation.predictions import Prediction, record_lines
from stepjepa.evaluation.score import EvaluationResult
from stepjepa.evaluation.statistics import normal
from stepjepa.generation.local import config_set_aside
from stepjepa.generation.output import digest_of, reading_record
from stepjepa.generation.place import load_place
from stepjepa.utils.failures import library
from stepjepa.utils.terminal import Bar, is_quiet

_NAME = Names(EvaluateOptions)


class Harness:
    """The tasks that are asked for by names and patterns (``mmlu_*``). Raises ConfigError: no harness, or no such task."""

    def __init__(self, options: HarnessOptions):
        self._manager = library("lm_eval.tasks", "eval").TaskManager(include_path=options.harness_include)
        self._fewshot = options.harness_fewshot
        logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it names every default
        names = ",".join(options.harness or ()).split(",")
        for name in names:
            if not self._manager.match_tasks([name]):
                near = did_you_mean(name, self._manager.all_tasks)
                raise ConfigError(f"--{_NAME.harness}: the harness has no task {name!r}{near}")
        self.tasks: list[str] = self._manager.match_tasks(names)

    def run(
        self, task: str, model: nn.Module, prompter: Prompter, system: str | None, batch_size: int, limit: int | None
    ) -> dict[str, Any]:
        """What `simple_evaluate` finds in a task, of the first `limit` questions of each of its data sets.

        Raises:
            ConfigError: the harness cannot run it.
        """
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM

        inner: Any = model
        stop_ids = prompter.stop_ids(getattr(inner.generation_config, "eos_token_id", None))
        bars = io.StringIO() if is_quiet() else sys.stderr
        try:
            with redirect_stderr(bars), config_set_aside(model, GenerationConfig(eos_token_id=stop_ids)):
                language_model = _as_trained(HFLM, prompter)(
                    pretrained=inner,
                    tokenizer=prompter.tokenizer,
                    batch_size=batch_size,
                    add_bos_token=False,  # the template writes all tokens
                    chat_template_args=prompter.renderer.kwargs,
                )
                return simple_evaluate(
                    model=language_model,
                    tasks=[task],
                    task_manager=self._manager,
                    num_fewshot=self._fewshot,
                    limit=limit,
                    apply_chat_template=True,
                    system_instruction=system,
                    # The metric of tasks that run programs refuses without the same variable.
                    confirm_run_unsafe_code=os.environ.get("HF_ALLOW_CODE_EVAL") == "1",
                )
        except Exception as error:
            raise ConfigError(f"--{_NAME.harness} {task}: {type(error).__name__}: {said(error)}") from error


def _as_trained(language_model: Any, prompter: Prompter) -> Any:
    """The harness's class of models, with prompts as everywhere else, and with what a model writes before an answer left
    out of its responses."""

    class Model(language_model):
        def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
            if add_generation_prompt:
                return prompter.text(chat_history)
            return super().apply_chat_template(chat_history, add_generation_prompt)

        def tok_decode(self, tokens: Any, skip_special_tokens: bool = True) -> Any:
            text = super().tok_decode(tokens, skip_special_tokens)
            return prompter.response(tokens, text) if isinstance(text, str) and isinstance(tokens, list) else text

    return Model


def metrics_of(task: str, results: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The results of a task, its own before those of its parts, with normal intervals of their standard errors."""
    metrics = {}
    for name in sorted(results, key=lambda one: (one != task, one)):
        values = results[name]
        for key, value in values.items():
            metric, _, filter_name = key.partition(",")
            if not filter_name or not isinstance(value, Real) or metric.endswith("_stderr"):
                continue
            error = values.get(f"{metric}_stderr,{filter_name}")
            error = float(error) if isinstance(error, Real) else None
            words = [name] * (name != task) + [metric] + [filter_name] * (filter_name != "none")
            interval = normal(float(value), error)._asdict()
            metrics[" ".join(words)] = {"kind": "score", **interval, "stderr": error, "n": values["sample_len"]}
    return metrics


def predictions_of(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Prediction]:
    """The samples of a task, by the first of its filters; of several choices the likeliest is the answer."""
    predictions: list[Prediction] = []
    for rows in samples.values():
        for row in rows:
            if row["filter"] == rows[0]["filter"]:
                predictions.append(_prediction(row, len(predictions)))
    return predictions


def _prediction(row: Mapping[str, Any], index: int) -> Prediction:
    arguments = row["arguments"]
    answers = row["filtered_resps"]
    target = row["target"]
    text = str(answers[0])
    if len(arguments) > 1:
        places = range(len(arguments))
        likeliest = max(places, key=lambda place: answers[place])
        text = str(arguments[likeliest][-1])
        if isinstance(target, int) and target in places:
            target = arguments[target][-1]
    scores = {}
    for name in row["metrics"]:
        if isinstance(row[name], Real):
            scores[name] = float(row[name])
    first = next(iter(scores.values()), None)
    return Prediction(
        index,
        question=arguments[0][0],
        ground_truth=str(target),
        generated_response=text,
        gt_answer=str(target),
        gen_answer=text,
        correct=first == 1.0 if first in (0.0, 1.0) else None,
        scores=scores,
    )


def evaluate_harness(options: EvaluateOptions) -> EvaluationResult:
    """Run the tasks, each into a folder of its own; those that are done are not run again.

    Raises:
        ConfigError, DataError: what cannot be used; what is done by then is kept.
    """
    options.check()
    harness = Harness(options)
    model = files.find(options)
    options, prompter, system = model.options, model.prompter, model.system
    outputs = {}
    for task in harness.tasks:
        paths = files.output_paths(model, task)
        outputs[task] = files.open_output(model, paths, digest_of([task, system.text]))
    done = EvaluationResult({}, {}, {"skipped": {}}, already=True)
    loaded = None
    with Bar() as bar:
        for line in (*options.notes(), f"system   {system.origin}"):
            bar.say(line)
        if prompter.note:
            bar.say(f"note     {prompter.note}")
        for task, output in outputs.items():
            record, target = output.complete, output.paths.results[0]
            if record is None:
                if loaded is None:
                    loaded, description = load_place(model.place, prompter.tokenizer, options, options.no_lora)
                    bar.say(f"model    {model.place.name} ({description})")
                with output.opened(lambda line: None):
                    size, limit = int(options.batch_size or 1), options.max_examples
                    result = harness.run(task, loaded, prompter, system.text, size, limit)
                    metrics = metrics_of(task, result["results"])
                    record = files.metrics_record(model, output, metrics, {}, {}, None)
                    record["versions"]["lm_eval"] = result["lm_eval_version"]
                    answers = [one.record() for one in predictions_of(result["samples"])]
                    output.finish({target: record_lines(target, answers)}, record)
                done.already = False
            done.record[task] = record
            with reading_record(output.paths.record):
                done.metrics |= {f"{task} {name}": one for name, one in record["metrics"].items()}
            done.files += [target, output.paths.record]
    return done
