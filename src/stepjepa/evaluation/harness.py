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
from stepjepa.evaluation.options import EvaluateOptions, HarnessOptions
from stepjepa.evaluation.predictions import EvaluationResult, Prediction, record_lines
from stepjepa.evaluation.run import open_model, open_output, output_paths, record_of
from stepjepa.evaluation.statistics import normal
from stepjepa.generation import digest_of, local
from stepjepa.generation.store import reading_record
from stepjepa.utils.failures import library
from stepjepa.utils.terminal import Bar, is_quiet

_NAME = Names(EvaluateOptions)


class Harness:
    """The tasks that are asked for by names and patterns (``mmlu_*``). Raises ConfigError: no harness, or no such task."""

    def __init__(self, options: HarnessOptions):
        self._manager = library("lm_eval.tasks", "eval").TaskManager(include_path=options.harness_include)
        self._fewshot, names = options.harness_fewshot, ",".join(options.harness or ()).split(",")
        logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it names every default
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
        template = {"add_bos_token": False, "chat_template_args": prompter.renderer.kwargs}  # which writes all tokens
        count = {"num_fewshot": self._fewshot, "limit": limit}
        bars = io.StringIO() if is_quiet() else sys.stderr
        try:
            with redirect_stderr(bars), local.config_set_aside(model, GenerationConfig(eos_token_id=stop_ids)):
                lm = _as_trained(HFLM, prompter)(
                    pretrained=inner, tokenizer=prompter.tokenizer, batch_size=batch_size, **template
                )
                chat = {"apply_chat_template": True, "system_instruction": system}
                # The metric of such tasks refuses without the same variable.
                chat["confirm_run_unsafe_code"] = os.environ.get("HF_ALLOW_CODE_EVAL") == "1"
                return simple_evaluate(model=lm, tasks=[task], task_manager=self._manager, **count, **chat)
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
    found = {}
    for name, values in sorted(results.items(), key=lambda one: one[0] != task):
        for key, value in values.items():
            metric, _, kept = key.partition(",")
            if kept and isinstance(value, Real) and not metric.endswith("_stderr"):
                error = values.get(f"{metric}_stderr,{kept}")
                error = float(error) if isinstance(error, Real) else None
                words = [name] * (name != task) + [metric] + [kept] * (kept != "none")
                one = {"kind": "score", **normal(float(value), error)._asdict(), "stderr": error}
                found[" ".join(words)] = {**one, "n": values["sample_len"]}
    return found


def predictions_of(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Prediction]:
    """The samples of a task, by the first of its filters; of several choices the likeliest is the answer."""
    found = list[Prediction]()
    for one in (one for rows in samples.values() for one in rows if one["filter"] == rows[0]["filter"]):
        given, answers, target = one["arguments"], one["filtered_resps"], one["target"]
        text = str(answers[0])
        if len(given) > 1:
            text = str(given[max(range(len(given)), key=lambda place: answers[place])][-1])
            target = given[target][-1] if isinstance(target, int) and target < len(given) else target
        scores = {name: float(one[name]) for name in one["metrics"] if isinstance(one[name], Real)}
        first = next(iter(scores.values()), None)
        right = first == 1.0 if first in (0.0, 1.0) else None
        found.append(Prediction(len(found), given[0][0], str(target), text, str(target), text, right, scores=scores))
    return found


def evaluate_harness(options: EvaluateOptions) -> EvaluationResult:
    """Run the tasks, each into a folder of its own; those that are done are not run again.

    Raises:
        ConfigError, DataError: what cannot be used; what is done by then is kept.
    """
    options.check()
    harness, model = Harness(options), None
    opened = open_model(options)
    options, place, _, system, prompter = opened
    done = EvaluationResult({}, {}, {"skipped": {}}, already=True)
    outputs = {
        task: open_output(opened, output_paths(opened, task), digest_of([task, system.text])) for task in harness.tasks
    }
    with Bar() as bar:
        notes = [f"note     {prompter.note}"] if prompter.note else []
        for line in (*options.without_effect(), f"system   {system.origin}", *notes):
            bar.say(line)
        for task, output in outputs.items():
            record, target = output.complete, output.paths.results[0]
            if record is None:
                if model is None:
                    model, description = local.load_place(place, prompter.tokenizer, options, options.no_lora)
                    bar.say(f"model    {place.name} ({description})")
                with output.opened(lambda line: None):
                    limits = int(options.batch_size or 1), options.max_examples
                    found = harness.run(task, model, prompter, system.text, *limits)
                    result = EvaluationResult(metrics_of(task, found["results"]), {}, {})
                    record = record_of(result, opened, output)
                    record["versions"]["lm_eval"] = found["lm_eval_version"]
                    answers = [one.record() for one in predictions_of(found["samples"])]
                    output.finish({target: record_lines(target, answers)}, record)
                done.already = False
            with reading_record(output.paths.record):
                str(EvaluationResult(record["metrics"], {}, done.rows))  # a damaged record cannot be printed
            done.record[task] = record
            done.metrics |= {f"{task} {name}": one for name, one in record["metrics"].items()}
            done.files += [target, output.paths.record]
    return done
