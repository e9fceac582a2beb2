"""One evaluation: of a model in memory (`evaluate_model`), of one that is being trained (`AnswerScorer`), or from options to
files (`evaluate`)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from stepjepa.config.option import Names
from stepjepa.data.options import PairColumns, PromptFrom
from stepjepa.data.report import DataReport, recorded_ending
from stepjepa.data.sources import RowSource
from stepjepa.data.tokens import Prompter
from stepjepa.errors import ConfigError
from stepjepa.evaluation import files, nll
from stepjepa.evaluation.metrics import MODEL_METRICS, Metric, make_metrics, model_metrics
from stepjepa.evaluation.options import EvaluateOptions
from stepjepa.evaluation.predictions import record_lines
from stepjepa.evaluation.questions import QuestionSet, SystemPrompt, read_questions
from stepjepa.evaluation.score import (
    EvaluationResult,
    drop_unusable,
    earlier_result,
    generation_summary,
    prediction_of,
    summarise,
)
from stepjepa.generation.local import BATCH_SIZE, LocalGenerator
from stepjepa.generation.output import Record, ReplyLog, Request, reading_record, refuse_other, seed_of
from stepjepa.generation.place import load_generator
from stepjepa.utils.files import read_object
from stepjepa.utils.terminal import Bar

_NAME = Names(EvaluateOptions)
RowsGiven = str | os.PathLike[str] | Iterable[Mapping[str, Any]] | RowSource


def _requests(asked: QuestionSet, temperature: float, seed: int) -> list[Request]:
    """What the model is asked for."""
    return [
        Request(one.index, one.prompt, temperature, seed_of(seed, one.index), one.template_kwargs)
        for one in asked.questions
    ]


def evaluate_model(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    rows: RowsGiven,
    metrics: Sequence[str],
    *,
    metric_options: Mapping[str, Any] | None = None,
    max_new_tokens: int = 512,
    batch_size: int = BATCH_SIZE,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 42,
    system_prompt: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    prompt_from: PromptFrom = None,
    trained: str | None = None,
    columns: PairColumns | None = None,
    split: str = "test",
    max_examples: int | None = None,
    max_length: int | None = None,
    vocabulary: int | None = None,
) -> EvaluationResult:
    """Evaluate a model in memory; no file is written.

    Args:
        model: any Hugging Face causal LM on its device, also one that a `JEPATrainer` is training. Its train/eval mode and
            its generation config are restored afterwards.
        tokenizer: its tokenizer, with a chat template.
        rows: a path, a Hub data set, a `datasets.Dataset` or a list of dicts, as training takes them.
        metrics: names of metrics, see `stepjepa.evaluation.metrics`, also those of likelihoods such as ``answer_nll``.
        metric_options: of the metrics; each takes those that it has.
        max_new_tokens, batch_size, temperature, top_p, seed: of the generation, see `generate_batch`.
        system_prompt: put in front of chats that have none, as in training.
        chat_template_kwargs: what the chat template takes in addition to the messages.
        prompt_from, trained: which prompt is asked with, see `Prompter`.
        columns: the two columns of a data set of pairs.
        split: of a Hub data set.
        max_examples: evaluate on the first so many rows only.
        max_length: ``answer_nll``: longest chat in tokens, None for any.
        vocabulary: ``answer_nll``: V of the softmax, where predictor tokens follow it (`trainer.setup.vocabulary`).

    Raises:
        ConfigError, DataError: what cannot be used.

    Examples:
        >>> result = evaluate_model(model, tokenizer, "test.jsonl", ["gsm8k"])
        >>> result.value("gsm8k"), result.metrics["gsm8k"]["low"]
    """
    if not metrics:
        raise ConfigError("metrics is empty; name one, see stepjepa.evaluation.metrics")
    with ExitStack() as stack:
        chosen = [stack.enter_context(metric) for metric in make_metrics(metrics, metric_options)]
        prompter = Prompter(tokenizer, None, False, chat_template_kwargs, prompt_from, trained)
        source = rows if isinstance(rows, RowSource) else RowSource(rows, split)
        asked = read_questions(source, SystemPrompt(system_prompt, True, ""), columns, max_examples)
        drop_unusable(asked, chosen, prompter)
        bar, log, likelihoods, losses = Bar(silent=True), ReplyLog(), Likelihoods(), model_metrics(metrics)
        if losses:
            computed = nll.AnswerLikelihood(asked, prompter, model, batch_size, vocabulary, max_length)
            likelihoods = _compute(computed, losses, bar)
        if chosen:
            generator = LocalGenerator(model, prompter, max_new_tokens, top_p, batch_size)
            log.ask(generator, _requests(asked, temperature, seed), "answers", bar)
        return _score(asked, chosen, log, likelihoods, bar)


def evaluate(options: EvaluateOptions) -> EvaluationResult:
    """Evaluate as the options say, into files. Interrupted, the same call resumes; a further metric scores the answers that
    are stored already.

    Raises:
        ConfigError, DataError: what cannot be used; what is done by then is kept.
    """
    options.check()
    with ExitStack() as stack:
        bar = stack.enter_context(Bar())
        for line in options.notes():
            bar.say(line)
        model = files.find(options)
        options, prompter = model.options, model.prompter
        paths = files.output_paths(model, str(options.test_file))
        names = list(options.metric or ())
        if not options.overwrite_output_dir:  # the metrics that are there stay
            names += _scored_metrics(read_object(paths.record))
        names = _ordered(names)
        metrics = [stack.enter_context(metric) for metric in make_metrics(names, options.metric_options)]
        source = RowSource(options.test_file, options.dataset_split)
        asked = read_questions(source, model.system, options.columns, options.max_examples)
        drop_unusable(asked, metrics, prompter)

        output = files.open_output(model, paths, asked.fingerprint())
        target = paths.results[0 if metrics else 1]
        log, before, likelihoods = ReplyLog(output), output.complete, Likelihoods()
        losses = model_metrics(names)
        if before is not None:
            scoring = files.scoring_of(names, options)
            with reading_record(paths.record):
                scored = {**before["scoring"], _NAME.metric: _ordered(_scored_metrics(before))}
                if scored == scoring:
                    return earlier_result(before, [target, paths.record])
                refuse_other(paths.record, {**scored, _NAME.metric: names}, scoring)
                rows = files.restore(log, before, paths)
                if rows and before["metrics"].keys() >= set(losses):
                    likelihoods = Likelihoods({name: before["metrics"][name] for name in losses}, rows)
                    losses = []

        description = "not loaded: its stored answers are scored again"
        generator = None
        unanswered = any(one.index not in log.replies for one in asked.questions)
        if losses or (metrics and unanswered):
            generator, description = load_generator(model.place, prompter, options, options.no_lora)

        with output.opened(log.take):
            bar.say(f"model    {model.place.name} ({description})")
            bar.say(f"data     {asked.source}: {len(asked.questions)} of {asked.rows_read} rows")
            for line in asked.skipped_lines():
                bar.say(f"         {line}")
            bar.say(model.system.line(asked.own_system_prompts, asked.rows_read))
            if prompter.note:
                bar.say(f"note     {prompter.note}")
            if losses:
                assert isinstance(generator, LocalGenerator)  # `EvaluateOptions.check` sees to it
                size, vocabulary = options.batch_size or BATCH_SIZE, nll.softmax_size(generator.model, prompter)
                loaded = generator.model
                computed = nll.AnswerLikelihood(asked, prompter, loaded, size, vocabulary, options.max_length)
                likelihoods = _compute(computed, losses, bar)
            if metrics and generator is not None:
                log.ask(generator, _requests(asked, options.temperature, options.seed), "answers", bar)
            result = _score(asked, metrics, log, likelihoods, bar)
            result.files = [target, paths.record]
            result.record = files.metrics_record(model, output, result, names)
            records = [one.record() for one in result.predictions] or result.answer_nll
            output.finish({target: record_lines(target, records)}, result.record)
            if result.predictions:
                paths.results[1].unlink(missing_ok=True)  # of an evaluation by the likelihood alone
        return result


def _scored_metrics(record: Record) -> list[str]:
    """The metrics of a complete evaluation."""
    scoring = record.get("scoring")
    metrics = scoring.get("metric") if isinstance(scoring, dict) else None
    return metrics if isinstance(metrics, list) else []


def _ordered(names: Sequence[str]) -> list[str]:
    """Each metric once, likelihoods last: only the order of the others decides something."""
    texts = [name for name in names if name not in MODEL_METRICS]
    return list(dict.fromkeys([*texts, *(name for name in MODEL_METRICS if name in names)]))


@dataclass(frozen=True)
class Likelihoods:
    """Likelihoods of the reference answers: the metrics, and what is recorded of each question, by its index."""

    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)


def _compute(likelihood: nll.AnswerLikelihood, names: Sequence[str], bar: Bar) -> Likelihoods:
    bar.begin("likelihoods", len(likelihood.examples))
    losses = []
    for batch in likelihood.compute():
        losses += batch
        bar.step(len(batch))
    losses.sort()
    metrics = {name: nll.summarise(losses, likelihood.report, name) for name in names}
    return Likelihoods(metrics, {one.row: one.values() for one in losses})


def _score(
    asked: QuestionSet, metrics: Sequence[Metric], log: ReplyLog, likelihoods: Likelihoods, bar: Bar
) -> EvaluationResult:
    """Score the answers. Raises DataError: a metric of the user's failed."""
    summary, predictions = {}, []
    if metrics:
        bar.begin("scores", len(asked.questions))
        for question in asked.questions:
            reply, likelihood = log.replies[question.index], likelihoods.rows.get(question.index, {})
            predictions.append(prediction_of(question, reply, metrics, likelihood))
            bar.step(1)
        summary = {metric.name: summarise(metric, predictions) for metric in metrics}
    rows = {
        "read": asked.rows_read,
        "evaluated": len(asked.questions),
        "skipped": dict(asked.rows_skipped),
        "first_skipped": asked.first_skipped,
    }
    texts = {question.index: question.text for question in asked.questions}
    stored = [{"index": index, "question": texts[index], **one} for index, one in likelihoods.rows.items()]
    generation = generation_summary(predictions, log.seconds)
    return EvaluationResult({**summary, **likelihoods.metrics}, generation, rows, predictions, stored)


class AnswerScorer:
    """Lets a model answer the first questions of a data set and sums up the scores, a share of them in each process.

    Args:
        rows: what `RowSource` takes.
        metrics: names, see `stepjepa.evaluation.metrics`.
        samples: questions that are answered, over all processes.
        settings: what else `evaluate_model` takes.

    Raises:
        ConfigError: an unknown metric, or one that generates nothing.

    Attributes:
        data_reports: those of the run that trains the model, which sets them; questions are asked as it is trained.
    """

    def __init__(self, rows: RowsGiven, metrics: Sequence[str], samples: int = 100, **settings: Any):
        if losses := model_metrics(metrics):
            raise ConfigError(f"eval_metrics: {losses[0]} is what the evaluation logs as lm_loss anyway; leave it out")
        for metric in make_metrics(metrics, settings.get("metric_options")):  # so that a typo is found before training
            metric.close()
        source = rows if isinstance(rows, RowSource) else RowSource(rows, "test")
        self.rows = [row for _, row in islice(source, samples)]
        self.metrics, self.settings = list(metrics), settings
        self.data_reports: Mapping[str, DataReport] = {}

    def __call__(
        self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, process: int = 0, processes: int = 1
    ) -> dict[str, tuple[float, int]]:
        """Sum and number of the scores by metric, and of the answers that did not stop (``did_not_stop``).

        Args:
            process, processes: every process answers the questions whose number leaves its own remainder.
        """
        own = self.rows[process::processes]
        if not own:
            return dict.fromkeys([*self.metrics, "did_not_stop"], (0.0, 0))
        reports = {name: {"prompts": one.prompts.to_dict()} for name, one in self.data_reports.items()}
        settings = {"trained": recorded_ending(reports), **self.settings}
        result = evaluate_model(model, tokenizer, own, self.metrics, **settings)
        sums = dict[str, tuple[float, int]]()
        for name in self.metrics:
            scores = [one.scores[name] for one in result.predictions]
            counted = [score for score in scores if not math.isnan(score)]  # a count says nothing about some answers
            sums[name] = sum(counted), len(counted)
        cut = result.generation["did_not_stop"]
        return {**sums, "did_not_stop": (cut["count"], cut["n"])}
