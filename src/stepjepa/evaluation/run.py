"""One evaluation: of a model in memory (`evaluate_model`), of one that is being trained (`AnswerScorer`), or from options to
files (`evaluate`)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn
from transformers import PreTrainedTokenizerBase

from stepjepa.config.option import Names
from stepjepa.data.options import PairColumns, PromptFrom
from stepjepa.data.report import DataReport, recorded_ending
from stepjepa.data.sources import RowSource
from stepjepa.data.tokens import Prompter
from stepjepa.errors import ConfigError
from stepjepa.evaluation import files, nll
from stepjepa.evaluation.metrics import Metric, make_metrics, model_metrics
from stepjepa.evaluation.options import EvaluateOptions
from stepjepa.evaluation.predictions import record_lines
from stepjepa.evaluation.questions import Question, QuestionSet, SystemPrompt, read_questions
from stepjepa.evaluation.score import EvaluationResult, drop_unusable, generation_summary, predictions_of, summarise
from stepjepa.generation.local import BATCH_SIZE, LocalGenerator
from stepjepa.generation.output import Generator, Record, Request, reading_record, refuse_other, seed_of
from stepjepa.generation.place import load_generator
from stepjepa.utils.files import read_object
from stepjepa.utils.terminal import Bar

_NAME = Names(EvaluateOptions)
RowsGiven = str | os.PathLike[str] | Iterable[Mapping[str, Any]] | RowSource


class Sampling(NamedTuple):
    """How often and how a question is asked."""

    temperature: float
    seed: int
    samples: int

    def check(self, metrics: Sequence[Metric]) -> None:
        """Raises ConfigError: several answers to a question would be the same."""
        if self.samples > 1 and metrics and not self.temperature:
            given, needed = f"--{_NAME.samples_per_question} {self.samples}", f"--{_NAME.temperature}"
            raise ConfigError(f"{given}: all answers to a question would be the same; give a {needed} above 0")

    def numbered(self, asked: QuestionSet) -> list[tuple[int, Question]]:
        """The number of each request, and so of its seed, with its question, which has `samples` of them."""
        return [(one.index * self.samples + sample, one) for one in asked.questions for sample in range(self.samples)]

    def requests(self, asked: QuestionSet) -> list[Request]:
        """What the model is asked for."""
        return [
            Request(number, one.prompt, self.temperature, seed_of(self.seed, number), one.template_kwargs)
            for number, one in self.numbered(asked)
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
    samples_per_question: int = 1,
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
        samples_per_question: answers to each; more than one need a temperature.
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
        sampling = Sampling(temperature, seed, samples_per_question)
        sampling.check(chosen)
        likelihood = None
        losses = model_metrics(metrics)
        if losses:
            likelihood = nll.AnswerLikelihood(asked, prompter, model, batch_size, vocabulary, max_length)
        generator = LocalGenerator(model, prompter, max_new_tokens, top_p, batch_size) if chosen else None
        return _answer_and_score(
            asked, chosen, losses, files.Answers(), sampling, generator, likelihood, Bar(silent=True)
        )


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
        if not options.overwrite_output_dir:
            names = list(dict.fromkeys([*names, *_scored_before(paths.record)]))
        metrics = [stack.enter_context(metric) for metric in make_metrics(names, options.metric_options)]
        sampling = Sampling(options.temperature, options.seed, options.samples_per_question)
        sampling.check(metrics)
        source = RowSource(options.test_file, options.dataset_split)
        asked = read_questions(source, model.system, options.columns, options.max_examples)
        drop_unusable(asked, metrics, prompter)

        output = files.open_output(model, paths, asked.fingerprint())
        target = paths.results[0 if metrics else 1]
        answers, before = files.Answers(output), output.complete
        losses, stored = model_metrics(names), dict[str, Any]()
        if before is not None:
            scoring = files.scoring_of(names, options)
            with reading_record(paths.record):
                if before["scoring"] == scoring:
                    return earlier_result(before, [target, paths.record])
                refuse_other(paths.record, {**before["scoring"], _NAME.metric: names}, scoring)
                answers.take_complete(before, paths, sampling.samples)
                if answers.losses:
                    stored = {name: before["metrics"][name] for name in losses if name in before["metrics"]}
                    if not metrics and len(stored) == len(losses):  # asked for in another order
                        return earlier_result(before, [target, paths.record])
        if len(stored) == len(losses):  # the likelihoods are stored for all of their metrics or for none
            losses = []
        else:
            stored = {}

        description = "not loaded: its stored answers are scored again"
        generator = likelihood = None
        unanswered = any(number not in answers.replies for number, _ in sampling.numbered(asked))
        if losses or (metrics and unanswered):
            generator, description = load_generator(model.place, prompter, options, options.no_lora)
        if losses:
            assert isinstance(generator, LocalGenerator)  # `EvaluateOptions.check` sees to it
            size, vocabulary = options.batch_size or BATCH_SIZE, nll.softmax_size(generator.model, prompter)
            likelihood = nll.AnswerLikelihood(asked, prompter, generator.model, size, vocabulary, options.max_length)

        with output.opened(answers.take):
            bar.say(f"model    {model.place.name} ({description})")
            bar.say(f"data     {asked.source}: {len(asked.questions)} of {asked.rows_read} rows")
            for line in asked.skipped_lines():
                bar.say(f"         {line}")
            bar.say(model.system.line(asked.own_system_prompts, asked.rows_read))
            if prompter.note:
                bar.say(f"note     {prompter.note}")
            result = _answer_and_score(asked, metrics, losses, answers, sampling, generator, likelihood, bar)
            result.metrics |= stored
            result.files = [target, paths.record]
            result.record = files.metrics_record(model, output, result.metrics, result.generation, result.rows, names)
            records = [one.record() for one in result.predictions] or result.answer_nll
            output.finish({target: record_lines(target, records)}, result.record)
            if result.predictions:
                paths.results[1].unlink(missing_ok=True)  # of an evaluation by the likelihood alone
        return result


def _scored_before(record: Path) -> list[str]:
    """The metrics of the complete evaluation in `record`, which stay in its files."""
    scoring = read_object(record).get("scoring")
    metrics = scoring.get("metric") if isinstance(scoring, dict) else None
    return metrics if isinstance(metrics, list) else []


def earlier_result(record: Record, written: list[Path]) -> EvaluationResult:
    """The result of an evaluation that was complete before, which can be printed.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, ArithmeticError: the record is damaged.
    """
    parts = record["metrics"], record["generation"], record["rows"]
    result = EvaluationResult(*parts, record=record, files=written, already=True)
    str(result)
    return result


def _answer_and_score(
    asked: QuestionSet,
    metrics: Sequence[Metric],
    losses: Sequence[str],
    answers: files.Answers,
    sampling: Sampling,
    generator: Generator | None,
    likelihood: nll.AnswerLikelihood | None,
    bar: Bar,
) -> EvaluationResult:
    """Compute the likelihoods for the metrics `losses`, let the generator answer what it has not, and score the answers.

    Raises:
        ConfigError, DataError: the model cannot be asked, an answer not be stored, or a metric of the user's failed.
    """
    if likelihood is not None:
        answers.compute(likelihood, bar)
    summary, predictions = {}, []
    if metrics:
        if generator is not None:
            answers.ask(generator, sampling.requests(asked), "answers", bar)
        bar.begin("scores", len(asked.questions) * sampling.samples)
        answered = [(one, answers.replies[number]) for number, one in sampling.numbered(asked)]
        predictions = predictions_of(answered, sampling.samples, answers.losses, metrics, bar.step)
        summary = summarise(metrics, predictions, asked.questions)
    rows = {
        "read": asked.rows_read,
        "evaluated": len(asked.questions),
        "skipped": dict(asked.rows_skipped),
        "first_skipped": asked.first_skipped,
    }
    result = EvaluationResult(summary, generation_summary(predictions, answers.seconds), rows, predictions)
    if likelihood is not None:
        computed = [answers.losses[index] for index in sorted(answers.losses)]
        for name in losses:
            result.metrics[name] = nll.summarise(computed, likelihood, name)
        texts = {question.index: question.text for question in asked.questions}
        for loss in computed:
            result.answer_nll.append({"index": loss.row, "question": texts[loss.row], **loss.values()})
    return result


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
            raise ConfigError(
                f"eval_metrics: {losses[0]} is read off the likelihood of the references, and the evaluation computes their "
                "lm_loss anyway; leave it out"
            )
        if samples < 1:
            raise ConfigError(f"samples is {samples}; it must be at least 1")
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
