"""One evaluation: of a model in memory (`evaluate_model`), of one that is being trained (`AnswerScorer`), or from options to
files (`evaluate`).

The files of an evaluation, in its folder (see `stepjepa.generation.store`):

    predictions.jsonl     the answers
    answer_nll.jsonl      instead of them where nothing is generated
    metrics.json          the result
    predictions.partial   while it runs: what is done
"""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn
from transformers import PreTrainedTokenizerBase

from stepjepa.config.option import Names
from stepjepa.data.options import ColumnOptions, PairColumns, PromptFrom
from stepjepa.data.prompts import recorded_ending
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowSource
from stepjepa.data.tokens import Prompter
from stepjepa.errors import ConfigError, DataError, RowError
from stepjepa.evaluation import models, nll, predictions, questions
from stepjepa.evaluation.earlier import EarlierAnswers, comparable_identity, metrics_with_earlier
from stepjepa.evaluation.metrics import MODEL_METRICS, NLL, Metric, make_metrics, model_metrics
from stepjepa.evaluation.options import EvaluateOptions
from stepjepa.evaluation.predictions import EvaluationResult, record_lines
from stepjepa.evaluation.questions import Question, QuestionSet, SystemPrompt
from stepjepa.generation import Generator, Request, local, seed_of, vllm
from stepjepa.generation.store import Output, Paths, Record, Replies, reading_record
from stepjepa.modeling.card import add_results
from stepjepa.utils.files import digest, model_parts
from stepjepa.utils.terminal import Bar
from stepjepa.version import __version__

_NAME = Names(EvaluateOptions)
RowsGiven = str | os.PathLike[str] | Iterable[Mapping[str, Any]] | RowSource


@dataclass
class Answers(Replies):
    """What the model has answered so far.

    Attributes:
        losses: likelihoods of the reference answers, by the index of the question.
    """

    losses: dict[int, nll.AnswerLoss] = field(default_factory=dict)

    def take(self, line: Record) -> None:
        """As `Replies.take`."""
        if "losses" not in line:
            super().take(line)
            return
        for row, total, n, *ending in line["losses"]:
            if not ending:  # of a version that did not keep the end of turn apart: it is computed again
                continue
            end_total, ends = ending
            sums = [math.nan if value is None else value for value in (total, end_total)]
            self.losses[row] = nll.AnswerLoss(row, sums[0], n, sums[1], ends)


@dataclass
class Task:
    """What the model is asked for, and with what.

    Attributes:
        generator: answers the questions; None where no metric reads an answer.
        likelihood: the reference answers whose likelihood is computed, None for none.
        losses: the metrics that are read off it.
        samples: answers to each question.
    """

    questions: QuestionSet
    metrics: list[Metric]
    generator: Generator | None = None
    likelihood: nll.AnswerLikelihood | None = None
    losses: Sequence[str] = (NLL,)
    temperature: float = 0.0
    seed: int = 42
    samples: int = 1
    bar: Bar = field(default_factory=lambda: Bar(silent=True))

    def __post_init__(self) -> None:
        if self.samples > 1 and self.metrics and not self.temperature:
            given, needed = f"--{_NAME.samples_per_question} {self.samples}", f"--{_NAME.temperature}"
            raise ConfigError(f"{given}: all answers to a question would be the same; give a {needed} above 0")

    def numbered(self) -> list[tuple[int, Question]]:
        """The number of each request, and so of its seed, with its question, which has `samples` of them."""
        asked = self.questions.questions
        return [(one.index * self.samples + sample, one) for one in asked for sample in range(self.samples)]


def evaluate_model(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    rows: RowsGiven,
    metrics: Sequence[str],
    *,
    metric_options: Mapping[str, Any] | None = None,
    max_new_tokens: int = 512,
    batch_size: int = local.BATCH_SIZE,
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
        asked = questions.read_questions(source, SystemPrompt(system_prompt, True, ""), columns, max_examples)
        drop_useless(asked, chosen, prompter)
        task, answers = Task(asked, chosen, temperature=temperature, seed=seed, samples=samples_per_question), Answers()
        if chosen:
            task.generator = local.LocalGenerator(model, prompter, max_new_tokens, top_p, batch_size)
        task.losses = model_metrics(metrics)
        if task.losses:
            task.likelihood = nll.AnswerLikelihood(asked, prompter, model, batch_size, vocabulary, max_length)
        answer(task, answers)
        return score(task, answers)


class Opened(NamedTuple):
    """The model of an evaluation before it is loaded, and how it is asked; the options with what they leave open."""

    options: EvaluateOptions
    place: local.Place
    record: models.TrainingRecord
    system: SystemPrompt
    prompter: Prompter


def open_model(options: EvaluateOptions) -> Opened:
    """Find the model, and read what its folder says. Raises ConfigError: it cannot be used."""
    place = local.find_model(str(options.model_name))
    record = models.read_record(place)
    default = vllm.BATCH_SIZE if options.backend == "vllm" else local.BATCH_SIZE
    options = replace(options, batch_size=options.batch_size or default)
    options = with_max_length(options, record)
    system = questions.choose_system_prompt(options.system_prompt, options.use_test_prompts, record, place.name)
    tokenizer = local.load_place_tokenizer(place, options.trust_remote_code)
    prompter = place.prompter(tokenizer, options)
    options.chat_template_kwargs = prompter.renderer.given or None
    return Opened(options, place, record, system, prompter)


def with_max_length(options: EvaluateOptions, record: models.TrainingRecord) -> EvaluateOptions:
    """The options with the longest chat of the training where the likelihood is computed and none is given."""
    if options.max_length is None and model_metrics(options.metric):
        return replace(options, max_length=record.settings.get("max_length"))
    return options


def evaluate(options: EvaluateOptions) -> EvaluationResult:
    """Evaluate as the options say, into files. Interrupted, the same call resumes.

    Raises:
        ConfigError, DataError: what cannot be used; what is done by then is kept.
    """
    options.check()
    with ExitStack() as stack:
        bar = stack.enter_context(Bar())
        for line in options.without_effect():
            bar.say(line)
        for metric in make_metrics(options.metric or (), options.metric_options):  # before anything is looked up
            metric.close()
        model = open_model(options)
        paths = output_paths(model, str(options.test_file))
        if not options.overwrite_output_dir:
            names = metrics_with_earlier(options.metric or [], paths.record)
            model = model._replace(options=with_max_length(replace(model.options, metric=names), model.record))
        names = model.options.metric or []
        metrics = [stack.enter_context(metric) for metric in make_metrics(names, options.metric_options)]
        place, system = model.place, model.system
        source = RowSource(options.test_file, options.dataset_split)
        asked = questions.read_questions(source, system, options.columns, options.max_examples)
        drop_useless(asked, metrics, model.prompter)
        output = open_output(model, paths, asked.fingerprint())
        target = paths.results[0 if metrics else 1]
        files = [target, paths.record]
        if output.complete is not None:
            with reading_record(output.paths.record):
                return written_before(output.complete, files)
        sampling = options.temperature, options.seed, options.samples_per_question
        losses = model_metrics(names)
        task, answers = Task(asked, metrics, None, None, losses, *sampling, bar), Answers(output)
        earlier = _take_earlier(task, answers, output)
        # The likelihoods are stored for all of their metrics or for none.
        stored = {name: earlier.metrics[name] for name in losses if name in earlier.metrics}
        task.losses = () if len(stored) == len(losses) else losses
        description = "not loaded: its stored answers are scored again"
        unanswered = bool(metrics) and any(number not in answers.replies for number, _ in task.numbered())
        if unanswered or task.losses:
            description = _load(model, task)
        with output.opened(answers.take):
            bar.say(f"model    {place.name} ({description})")
            bar.say(f"data     {asked.source}: {len(asked.questions)} of {asked.rows_read} rows")
            for line in asked.skipped_lines():
                bar.say(f"         {line}")
            bar.say(questions.system_prompt_line(system, asked))
            if model.prompter.note:
                bar.say(f"note     {model.prompter.note}")
            if options.no_lora and place.base is None:
                bar.say(f"note     --{_NAME.no_lora} changes nothing: {place.name} is no adapter")
            answer(task, answers)
            result = score(task, answers)
            if not task.losses:
                result.metrics |= stored
            result.files, result.record = files, record_of(result, model, output)
            records = [one.record() for one in result.predictions] or result.answer_nll
            output.finish({target: record_lines(target, records)}, result.record)
            if result.predictions:
                paths.results[1].unlink(missing_ok=True)  # of an evaluation by the likelihood alone
            if place.folder is not None and not (options.no_lora and place.base is not None):
                files += add_results(place.folder, asked.source, result.metrics)
        return result


def _take_earlier(task: Task, answers: Answers, output: Output) -> EarlierAnswers:
    """Take the answers of a complete evaluation by other metrics, where there is one."""
    if output.outdated is None:
        return EarlierAnswers()
    earlier = EarlierAnswers.read(output.outdated, output.paths, task.samples)
    answers.replies, answers.losses, answers.seconds = earlier.replies, earlier.losses, earlier.seconds
    return earlier


def written_before(record: Record, files: list[Path]) -> EvaluationResult:
    """The result of an evaluation that was complete before, which can be printed.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, ArithmeticError: the record is damaged.
    """
    parts = record["metrics"], record["generation"], record["rows"]
    result = EvaluationResult(*parts, record=record, files=files, already=True)
    str(result)
    return result


def record_of(result: EvaluationResult, model: Opened, output: Output) -> Record:
    """What ``metrics.json`` holds."""
    system, place = model.system, model.place
    versions = {"stepjepa": __version__, "torch": torch.__version__, "transformers": transformers.__version__}
    return {
        "metrics": result.metrics,
        "generation": result.generation,
        "rows": result.rows,
        "system_prompt": {"text": system.text, "own_first": system.keep, "from": system.origin},
        "settings": asdict(model.options),
        "versions": {**versions, "python": platform.python_version()},
        "identity": output.identity,
        "scoring": output.scoring,
        "model_folder": None if place.folder is None else digest(model_parts(place.folder)),
    }


def answer(task: Task, answers: Answers) -> None:
    """Let the model answer whatever is not answered yet."""
    if task.likelihood is not None:
        task.bar.begin("likelihoods", len(task.likelihood.examples), len(answers.losses))
        for losses in task.likelihood.compute(answers.losses):
            answers.add({"losses": losses})
            task.bar.step(len(losses))
    if task.generator is not None:
        numbered = task.numbered()
        requests = [
            Request(row, one.prompt, task.temperature, seed_of(task.seed, row), one.template_kwargs)
            for row, one in numbered
        ]
        answers.ask(task.generator, requests, "answers", task.bar)


def score(task: Task, answers: Answers) -> EvaluationResult:
    """What the answers come to. Raises DataError: a metric of the user's failed."""
    asked = task.questions
    metrics, found, losses = {}, [], []
    if task.metrics:
        task.bar.begin("scores", len(asked.questions) * task.samples)
        answered = [(one, answers.replies[number]) for number, one in task.numbered()]
        found = predictions.predictions_of(answered, task.samples, answers.losses, task.metrics, task.bar.step)
        metrics = predictions.summarise(task.metrics, found, asked.questions)
    if task.likelihood is not None:
        values = [answers.losses[index] for index in sorted(answers.losses)]
        metrics |= {name: nll.summarise(values, task.likelihood, name) for name in task.losses}
        texts = {question.index: question.text for question in asked.questions}
        losses = [
            {
                "index": one.row,
                "question": texts[one.row],
                **{name: one.of(name) for name in MODEL_METRICS},
                "answer_tokens": one.tokens,
                "end_tokens": one.end_tokens,
            }
            for one in values
        ]
    rows = {
        "read": asked.rows_read,
        "evaluated": len(asked.questions),
        "skipped": dict(asked.rows_skipped),
        "first_skipped": asked.first_skipped,
    }
    made = predictions.generation_summary(found, answers.seconds)
    return EvaluationResult(metrics, made, rows, found, losses)


def drop_useless(asked: QuestionSet, metrics: Sequence[Metric], prompter: Prompter) -> None:
    """Take out and count the rows of which the chat template makes no prompt, or that lack what a metric compares with,
    before anything is generated; without metrics all are kept. A function of the user's is tried on the first row, with the
    reference as the answer.

    Raises:
        ConfigError: a metric lacks an option.
        DataError: nothing is left, or a function of the user's fails.
    """
    kept = [] if metrics else asked.questions
    for one in asked.questions if metrics else ():
        try:
            prompt = prompter.ids(one.prompt, one.template_kwargs)
        except ConfigError as error:
            asked.skip(RowError("template_refused", str(error)), one.place)
            continue
        if not prompt:
            asked.skip(RowError("empty_prompt", "the prompt is empty"), one.place)
            continue
        try:
            for metric in metrics:
                if not metric.is_custom:
                    metric.score("", one.row)
            kept.append(one)
        except DataError as error:
            asked.skip(RowError("no_reference", str(error)), one.place)
    asked.questions = kept
    for metric in metrics:
        if metric.is_custom and kept:
            predictions.scored(metric, kept[0].chat[-1]["content"], kept[0])
    asked.require(asked.questions, "can be evaluated on")


def output_paths(model: Opened, data: str) -> Paths:
    """The files, by default in ``evaluation-<data>`` in the model's folder; ``evaluation-<model>-<data>`` for a Hub id.

    Raises:
        ConfigError: their folder is a file.
    """
    options, place = model.options, model.place
    if options.output_file is not None:
        file = Path(options.output_file)
        results = file, file.with_name(f"{file.stem}.answer_nll{file.suffix}")
        record, partial = (file.with_name(f"{file.stem}.{kind}") for kind in ("metrics.json", "partial"))
    else:
        name = re.sub(r"[^\w.-]+", "-", Path(data).stem if Path(data).exists() else data).strip("-.") or "data"
        if place.folder is None:
            folder = Path(f"evaluation-{re.sub(r'[^a-zA-Z0-9_.-]+', '-', place.name)}-{name}")
        else:
            folder = place.folder / f"evaluation-{name}"
        if options.output_dir:
            folder = Path(options.output_dir) / (f"evaluation-{name}" if options.harness else "")
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"--{_NAME.output_dir} {folder}: is a file; give a folder")
        results = folder / "predictions.jsonl", folder / "answer_nll.jsonl"
        record, partial = folder / "metrics.json", folder / "predictions.partial"
    return Paths(results, record, partial)


def open_output(model: Opened, paths: Paths, fingerprint: str) -> Output:
    """The output of an evaluation.

    Raises:
        ConfigError: the files cannot be used, or are of another evaluation.
    """
    options, place = model.options, model.place
    defaults = EvaluateOptions().deciding(ColumnOptions)  # version 0.1 recorded fewer options, as they were by default
    identity = {
        **options.deciding(ColumnOptions),  # the columns decide the questions, and those are compared
        **models.digests(place, model.prompter.tokenizer, fingerprint, options.no_lora),
    }
    if model.prompter.dropped:
        identity["prompt_without"] = model.prompter.dropped
    return Output(
        paths,
        identity,
        {name: getattr(options, name) for name in (_NAME.metric, _NAME.metric_options)},
        options.overwrite_output_dir,
        [Path(str(options.test_file))],
        reader=lambda found: ({**defaults, **comparable_identity(found, options)}, found["scoring"]),
        renewable=[_NAME.metric],
    )


def _load(opened: Opened, task: Task) -> str:
    """Load what answers the task; a phrase that describes it."""
    options, place, record, _, prompter = opened
    generator, description = local.load_generator(place, prompter, options, options.no_lora)
    task.generator = generator if task.metrics else None
    if task.losses:
        assert isinstance(generator, local.LocalGenerator)  # `EvaluateOptions.check` sees to it
        vocabulary = models.softmax_size(generator.model, prompter.tokenizer, place, record)
        limits = options.batch_size or local.BATCH_SIZE, vocabulary, options.max_length
        task.likelihood = nll.AnswerLikelihood(task.questions, prompter, generator.model, *limits)
    return description


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
        scores = {name: [one.scores[name] for one in result.predictions] for name in self.metrics}
        # A count says nothing about some answers.
        scores = {name: [value for value in values if not math.isnan(value)] for name, values in scores.items()}
        cut = result.generation["did_not_stop"]
        return {name: (sum(values), len(values)) for name, values in scores.items()} | {
            "did_not_stop": (cut["count"], cut["n"])
        }
