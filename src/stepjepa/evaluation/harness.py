"""``stepjepa evaluate --harness``: runs tasks of the lm-evaluation-harness with the chat template and system message used
in training. Reports read the results like those of any other evaluation.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from numbers import Real
from typing import Any

from torch import nn
from transformers import GenerationConfig

from stepjepa.config.option import Names
from stepjepa.config.values import did_you_mean
from stepjepa.data.tokens import Prompter
from stepjepa.errors import ConfigError, library, said
from stepjepa.evaluation import files
from stepjepa.evaluation.options import EvaluateOptions
from stepjepa.evaluation.score import EvaluationResult, earlier_result
from stepjepa.evaluation.statistics import normal
from stepjepa.generation.local import config_set_aside
from stepjepa.generation.output import digest_of, reading_record
from stepjepa.generation.place import load_place
from stepjepa.utils.files import Record
from stepjepa.utils.terminal import Bar

_NAME = Names(EvaluateOptions)


def evaluate_harness(options: EvaluateOptions) -> EvaluationResult:
    """Run tasks, given by names and patterns (``mmlu_*``), and write the results as one evaluation.

    Raises:
        ConfigError, DataError: an option or file cannot be used, or the harness cannot run a task.
    """
    options.check()
    manager = library("lm_eval.tasks", "eval").TaskManager(include_path=options.harness_include)
    # The harness logs a warning for every default that it uses.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    # A name that matches nothing would otherwise be skipped, and the result would lack a task.
    names = ",".join(options.harness or ()).split(",")
    for name in names:
        if not manager.match_tasks([name]):
            near = did_you_mean(name, manager.all_tasks)
            raise ConfigError(f"--{_NAME.harness}: the harness has no task {name!r}{near}")
    tasks: list[str] = manager.match_tasks(names)

    # In the identity of the evaluation, the tasks that the patterns match take the place of the data.
    target = files.find(options)
    paths = files.output_paths(target, "-".join(names))
    output = files.open_output(target, paths, digest_of([*tasks, target.system.text]))
    if output.complete is not None:
        with reading_record(paths.record):
            return earlier_result(output.complete, [paths.record])
    # The harness answers all tasks in one call, so there is nothing to resume from.
    with Bar() as bar, output.opened(lambda line: None):
        model, description = load_place(
            target.place, target.prompter.tokenizer, target.options, options.no_lora
        )
        bar.say(f"model    {target.place.name} ({description})")
        bar.say(f"system   {target.system.origin}")
        for note in (*options.notes(), target.prompter.note):
            if note:
                bar.say(note)
        report = _run(manager, tasks, model, target)
        result = EvaluationResult(metrics_of(report["results"]), {}, {"skipped": {}})
        result.record = files.metrics_record(target, output, result, None)
        result.record["versions"]["lm_eval"] = report["lm_eval_version"]
        result.files = [paths.record]
        output.finish({}, result.record)
    return result


def _run(manager: Any, tasks: list[str], model: nn.Module, target: files.ModelToEvaluate) -> Record:
    """The report of the harness's `simple_evaluate`. Raises ConfigError: the harness cannot run a task."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    options, prompter = target.options, target.prompter
    inner: Any = model
    stop_ids = prompter.stop_ids(getattr(inner.generation_config, "eos_token_id", None))
    # The harness calls `generate` itself, so the stop tokens reach it through the model's generation config.
    try:
        with config_set_aside(model, GenerationConfig(eos_token_id=stop_ids)):
            language_model = _as_trained(HFLM, prompter)(
                pretrained=inner,
                tokenizer=prompter.tokenizer,
                batch_size=options.batch_size,
                # The chat template writes all special tokens.
                add_bos_token=False,
                chat_template_args={
                    **prompter.renderer.kwargs,
                    "chat_template": prompter.renderer.template,
                },
            )
            return simple_evaluate(
                model=language_model,
                tasks=tasks,
                task_manager=manager,
                num_fewshot=options.harness_fewshot,
                limit=options.max_examples,
                log_samples=False,
                apply_chat_template=True,
                system_instruction=target.system.text,
                # The metrics of tasks that run generated programs read the same variable, and fail without it.
                confirm_run_unsafe_code=os.environ.get("HF_ALLOW_CODE_EVAL") == "1",
            )
    except Exception as error:
        raise ConfigError(f"--{_NAME.harness}: {type(error).__name__}: {said(error)}") from error


def _as_trained(language_model: Any, prompter: Prompter) -> Any:
    """The harness's model class with our prompts, and with thinking removed from its responses."""

    class Model(language_model):
        def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
            if add_generation_prompt:
                return prompter.text(chat_history)
            # The last message is the start of an answer, which `Prompter` cannot render.
            return super().apply_chat_template(chat_history, add_generation_prompt)

        def tok_decode(self, tokens: Any, skip_special_tokens: bool = True) -> Any:
            text = super().tok_decode(tokens, skip_special_tokens)
            return prompter.response(tokens, text) if isinstance(tokens, list) else text

    return Model


def metrics_of(results: Mapping[str, Record]) -> dict[str, Record]:
    """The results of tasks and their subtasks, with normal intervals from their standard errors."""
    metrics = {}
    for name, values in results.items():
        # Keys are "metric,filter" and "metric_stderr,filter"; a standard error is "N/A" where the harness has none.
        for key, value in values.items():
            metric, _, filter_name = key.partition(",")
            if not filter_name or not isinstance(value, Real) or metric.endswith("_stderr"):
                continue
            error = values.get(f"{metric}_stderr,{filter_name}")
            error = float(error) if isinstance(error, Real) else None
            interval = normal(float(value), error)._asdict()
            words = f"{name} {metric} {filter_name}".removesuffix(" none")
            metrics[words] = {
                "kind": "score",
                **interval,
                "stderr": error,
                "n": values["sample_len"],
            }
    return metrics
