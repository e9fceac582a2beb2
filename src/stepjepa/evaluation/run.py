"""Runs an evaluation: of a model in memory (`evaluate_model`), during training (`AnswerScorer`), or from options to files
(`evaluate`)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from stepjepa.config.option import Names
from stepjepa.data.options import PairColumns
from stepjepa.data.report import DataReport, recorded_ending
from stepjepa.data.sources import RowSource
from stepjepa.data.tokens import Prompter
from stepjepa.errors import ConfigError
from stepjepa.evaluation import files, nll
from stepjepa.evaluation.metrics.base import MODEL_METRICS, Metric, make_metrics, model_metrics
from stepjepa.evaluation.nll import Likelihoods
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
from stepjepa.generation.local import LocalGenerator
from stepjepa.generation.options import BATCH_SIZE
from stepjepa.generation.output import (
    ReplyLog,
    Request,
    reading_record,
    refuse_other,
    seed_of,
)
from stepjepa.generation.place import load_generator
from stepjepa.utils.files import Record, read_object
from stepjepa.utils.terminal import Bar

_NAME = Names(EvaluateOptions)
RowsGiven = str | os.PathLike[str] | Iterable[Mapping[str, Any]] | RowSource


def _requests(question_set: QuestionSet, temperature: float = 0.0, seed: int = 0) -> list[Request]:
    """One request for each question; a question's seed depends only on its own row."""
    return [
        Request(
            question.index,
            question.prompt,
            temperature,
            seed_of(seed, question.index),
            question.template_kwargs,
        )
        for question in question_set.questions
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
    system_prompt: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    trained: str | None = None,
    columns: PairColumns | None = None,
    split: str = "test",
    max_examples: int | None = None,
    max_length: int | None = None,
) -> EvaluationResult:
    """Evaluate a model in memory; no file is written.

    Args:
        model: any Hugging Face causal LM on its device, including one in training. Its train/eval mode and its generation
            config are restored afterwards.
        tokenizer: its tokenizer, with a chat template.
        rows: a path, a Hub data set, a `datasets.Dataset` or a list of dicts, as training takes them.
        metrics: names of metrics, see `stepjepa.evaluation.metrics`, including likelihoods such as ``answer_nll``.
        metric_options: options of the metrics; each metric reads the options that it defines.
        max_new_tokens, batch_size: longest answer in tokens, and answers per batch. Decoding is greedy.
        system_prompt: system message for chats without one, as in training.
        chat_template_kwargs: arguments of the chat template besides the messages.
        trained: the form of the prompt, see `Prompter`.
        columns: the two columns of a data set of pairs.
        split: split of a Hub data set.
        max_examples: evaluate only this many rows, from the first.
        max_length: for likelihoods, longest chat in tokens; None for no limit.

    Raises:
        ConfigError, DataError: an argument or the data cannot be used.

    Examples:
        >>> result = evaluate_model(model, tokenizer, "test.jsonl", ["gsm8k"])
        >>> result.value("gsm8k"), result.metrics["gsm8k"]["low"]
    """
    with ExitStack() as stack:
        chosen = [stack.enter_context(metric) for metric in make_metrics(metrics, metric_options)]
        prompter = Prompter(tokenizer, None, False, chat_template_kwargs, None, trained)
        source = RowSource.of(rows, split)
        system = SystemPrompt(system_prompt, True, "")
        question_set = read_questions(source, system, columns, max_examples)
        drop_unusable(question_set, chosen, prompter)
        bar = Bar(silent=True)
        likelihoods = nll.likelihoods(
            question_set, model_metrics(metrics), prompter, model, batch_size, max_length, bar
        )
        log = ReplyLog()
        # Likelihoods alone need no generated answers.
        if chosen:
            generator = LocalGenerator(model, prompter, max_new_tokens, batch_size=batch_size)
            log.ask(generator, _requests(question_set), "answers", bar)
        return _score(question_set, chosen, log, likelihoods, bar)


def evaluate(options: EvaluateOptions) -> EvaluationResult:
    """Evaluate a model as the options say, and write the files. Repeating the call resumes an interrupted evaluation; with
    an additional metric, it scores the stored answers.

    Raises:
        ConfigError, DataError: an option, the model or the data cannot be used; finished batches are kept.
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
        # Metrics of an earlier call are kept, so that an additional metric does not replace them.
        if not options.overwrite_output_dir:
            names += _scored_metrics(read_object(paths.record))
        names = _ordered(names)
        metrics = [
            stack.enter_context(metric) for metric in make_metrics(names, options.metric_options)
        ]
        source = RowSource(options.test_file, options.dataset_split)
        question_set = read_questions(source, model.system, options.columns, options.max_examples)
        drop_unusable(question_set, metrics, prompter)

        output = files.open_output(model, paths, question_set.fingerprint())
        target = paths.results[0 if metrics else 1]
        log, earlier = ReplyLog(output), output.complete
        nll_names = model_metrics(names)
        # A complete evaluation with the same answers: it has all metrics already, or its answers are scored again.
        if earlier is not None:
            with reading_record(paths.record):
                # A record holds one set of options for all metrics.
                name = _NAME.metric_options
                stored, asked = earlier["settings"][name], options.metric_options
                refuse_other(paths.record, {name: stored}, {name: asked})
                if _scored_metrics(earlier) == names:
                    return earlier_result(earlier, [target, paths.record])
                files.restore(log, earlier, paths.results[0])

        # The model is loaded only if something is left to generate or to compute.
        description = "not loaded: its stored answers are scored again"
        generator = None
        unanswered = len(log.replies) < len(question_set.questions)
        if nll_names or (metrics and unanswered):
            generator, description = load_generator(model.place, prompter, options, options.no_lora)

        with output.opened(log.take):
            bar.say(f"model    {model.place.name} ({description})")
            bar.say(
                f"data     {question_set.source}: {len(question_set.questions)} of {question_set.rows_read} rows"
            )
            for line in question_set.skipped_lines():
                bar.say(f"         {line}")
            bar.say(f"system   {model.system.origin}")
            if prompter.note:
                bar.say(f"note     {prompter.note}")
            likelihoods = Likelihoods({}, {})
            # Only replies are stored batch by batch; likelihoods need a single pass, and are computed again.
            if nll_names:
                assert isinstance(generator, LocalGenerator)  # see `EvaluateOptions.check`
                likelihoods = nll.likelihoods(
                    question_set,
                    nll_names,
                    prompter,
                    generator.model,
                    options.questions_per_batch,
                    options.max_length,
                    bar,
                )
            if metrics and generator is not None:
                requests = _requests(question_set, options.temperature, options.seed)
                log.ask(generator, requests, "answers", bar)
            result = _score(question_set, metrics, log, likelihoods, bar)
            result.files = [target, paths.record]
            result.record = files.metrics_record(model, output, result, names)
            records = [
                prediction.record() for prediction in result.predictions
            ] or result.answer_nll
            output.finish({target: record_lines(target, records)}, result.record)
            # The predictions contain the likelihoods too, so the file of an earlier evaluation without answers is obsolete.
            if result.predictions:
                paths.results[1].unlink(missing_ok=True)
        return result


def _scored_metrics(record: Record) -> list[str]:
    """The metrics of a complete evaluation; empty for any other record."""
    return (record.get("settings") or {}).get(_NAME.metric) or []


def _ordered(names: Sequence[str]) -> list[str]:
    """Each metric once, likelihoods last in a fixed order. The order of the others matters: the first gives the verdict."""
    texts = [name for name in names if name not in MODEL_METRICS]
    return list(dict.fromkeys([*texts, *(name for name in MODEL_METRICS if name in names)]))


def _score(
    question_set: QuestionSet,
    metrics: Sequence[Metric],
    log: ReplyLog,
    likelihoods: Likelihoods,
    bar: Bar,
) -> EvaluationResult:
    """Score the answers. Raises DataError: a user's function failed."""
    summary, predictions = {}, []
    if metrics:
        bar.begin("scores", len(question_set.questions))
        for question in question_set.questions:
            reply = log.replies[question.index]
            likelihood = likelihoods.rows.get(question.index, {})
            predictions.append(prediction_of(question, reply, metrics, likelihood))
            bar.step(1)
        summary = {metric.name: summarise(metric, predictions) for metric in metrics}
    rows = {
        "read": question_set.rows_read,
        "evaluated": len(question_set.questions),
        "skipped": dict(question_set.rows_skipped),
        "first_skipped": question_set.first_skipped,
    }
    texts = {question.index: question.text for question in question_set.questions}
    answer_nll = [
        {"index": index, "question": texts[index], **values}
        for index, values in likelihoods.rows.items()
    ]
    generation = generation_summary(predictions, log.seconds)
    return EvaluationResult(
        {**summary, **likelihoods.metrics}, generation, rows, predictions, answer_nll
    )


class AnswerScorer:
    """Answers the first questions of a data set during training and sums the scores; each process answers a part of them.

    Args:
        rows: see `RowSource`.
        metrics: names of metrics, see `stepjepa.evaluation.metrics`.
        samples: number of questions, over all processes.
        settings: further arguments of `evaluate_model`.

    Raises:
        ConfigError: a metric is unknown, or is a likelihood.

    Attributes:
        data_reports: data reports of the training run, set by the trainer; prompts then have the form of the training data.
    """

    def __init__(
        self, rows: RowsGiven, metrics: Sequence[str], samples: int = 100, **settings: Any
    ):
        if nll_names := model_metrics(metrics):
            raise ConfigError(
                f"eval_metrics: {nll_names[0]} does not judge answers; leave it out, since lm_loss is logged anyway"
            )
        # Made once and discarded, so that a typo fails before training and not at the first evaluation.
        make_metrics(metrics, settings.get("metric_options"))
        source = RowSource.of(rows, "test")
        self.rows = [row for _, row in islice(source, samples)]
        self.metrics, self.settings = list(metrics), settings
        self.data_reports: Mapping[str, DataReport] = {}

    def __call__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        process: int = 0,
        processes: int = 1,
    ) -> dict[str, tuple[float, int]]:
        """Metric -> sum and number of its scores; ``did_not_stop`` -> number of answers that did not stop, and of answers.

        Args:
            process, processes: process p of n answers questions p, p + n, p + 2n, ...
        """
        rows = self.rows[process::processes]
        # A process without questions still takes part in the sum over processes, with the same keys.
        if not rows:
            return dict.fromkeys([*self.metrics, "did_not_stop"], (0.0, 0))
        reports = {name: report.to_dict() for name, report in self.data_reports.items()}
        settings = {"trained": recorded_ending(reports), **self.settings}
        result = evaluate_model(model, tokenizer, rows, self.metrics, **settings)
        # Sums and not means, because processes may have different numbers of questions.
        sums = dict[str, tuple[float, int]]()
        for name in self.metrics:
            scores = [prediction.scores[name] for prediction in result.predictions]
            # A metric of counts gives NaN for an answer to which it does not apply.
            counted = [score for score in scores if not math.isnan(score)]
            sums[name] = sum(counted), len(counted)
        cut = result.generation["did_not_stop"]
        return {**sums, "did_not_stop": (cut["count"], cut["n"])}
