"""One evaluation: of a model in memory (`evaluate`), or from options to files (``stepjepa evaluate``)."""

from __future__ import annotations

import contextlib
import hashlib
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

import stepjepa
from stepjepa.data.chat_template import template_of
from stepjepa.data.prompts import Prompter
from stepjepa.data.sources import PairColumns, RowSource
from stepjepa.errors import ConfigError
from stepjepa.evaluation import nll
from stepjepa.evaluation.models import (
    Place,
    TrainingRecord,
    find_model,
    fingerprint,
    load_place,
    load_place_tokenizer,
    read_record,
    softmax_size,
)
from stepjepa.evaluation.options import NLL, EvaluateOptions
from stepjepa.evaluation.rows import (
    QuestionSet,
    SystemPrompt,
    choose_system_prompt,
    drop_unaskable,
    read_questions,
    system_prompt_lines,
)
from stepjepa.evaluation.scoring import drop_unscorable, make_metrics
from stepjepa.evaluation.store import Output, Paths, Work
from stepjepa.evaluation.teachers.local import BATCH_SIZE, TransformersTeacher
from stepjepa.evaluation.teachers.vllm_engine import BATCH_SIZE as VLLM_BATCH_SIZE
from stepjepa.evaluation.teachers.vllm_engine import make_vllm_teacher, require_vllm
from stepjepa.evaluation.work import Evaluation, NoWatcher, Task, Watcher, answer, likelihood_of, score
from stepjepa.utils.manifest import weights_digest

__all__ = ["Evaluation", "Outcome", "Watcher", "default_folder", "evaluate", "run_evaluation"]

# Settings on which the answers depend; an evaluation goes on only with the same.
_DECIDING = (
    "backend no_lora dtype attn_implementation chat_template_kwargs max_examples max_length max_new_tokens batch_size "
    "temperature top_p seed"
).split()


def evaluate(
    model: Any,
    tokenizer: Any,
    rows: Any,
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
    columns: PairColumns | None = None,
    split: str = "test",
    max_examples: int | None = None,
    max_length: int | None = None,
    vocabulary: int | None = None,
    watcher: Watcher | None = None,
) -> Evaluation:
    """Evaluate a model in memory; no file is written.

    Args:
        model: any Hugging Face causal LM on its device, also one that a `JEPATrainer` is training. Its train/eval mode and
            its generation config are afterwards as they were.
        tokenizer: its tokenizer, with a chat template.
        rows: a path, a Hub data set, a `datasets.Dataset` or a list of dicts, as training takes them.
        metrics: names of metrics, see `stepjepa.evaluation.metrics`, or ``answer_nll``.
        metric_options: of the metrics; each takes those that it has.
        max_new_tokens, batch_size, temperature, top_p, seed: of the generation, see `generate_batch`.
        system_prompt: put in front of chats that have none, as in training.
        chat_template_kwargs: what the chat template takes beside the messages.
        columns: the two columns of a data set of pairs.
        split: of a Hub data set.
        max_examples: evaluate on the first so many rows only.
        max_length: ``answer_nll``: longest chat in tokens, None for any.
        vocabulary: ``answer_nll``: V of the softmax, where predictor tokens lie behind it (`trainer.setup.vocabulary`).
        watcher: is told how far it is.

    Returns:
        The metrics and the predictions.

    Raises:
        ConfigError, DataError: what cannot be used.

    Examples:
        >>> result = evaluate(model, tokenizer, "test.jsonl", ["gsm8k"])
        >>> result.value("gsm8k"), result.metrics["gsm8k"]["low"]
    """
    if not metrics:
        raise ConfigError("metrics is empty; name one, see stepjepa.evaluation.metrics")
    with contextlib.ExitStack() as stack:
        chosen = [stack.enter_context(metric) for metric in make_metrics(metrics, metric_options)]
        prompter = Prompter(tokenizer, template_kwargs=chat_template_kwargs)
        source = rows if isinstance(rows, RowSource) else RowSource(rows, split)
        questions = read_questions(source, SystemPrompt(system_prompt, True, ""), columns, max_examples)
        if chosen:
            drop_unaskable(questions, prompter)
            drop_unscorable(chosen, questions)
        questions.check()
        task = Task(
            questions,
            chosen,
            TransformersTeacher(model, prompter, max_new_tokens, top_p, batch_size) if chosen else None,
            likelihood_of(questions, prompter, max_length, nll.positions_of(model)) if NLL in metrics else None,
            model,
            _pad_id(tokenizer),
            batch_size,
            vocabulary,
            temperature,
            seed,
            watcher or NoWatcher(),
        )
        work = Work()
        answer(task, work)
        return score(task, work)


class Outcome(NamedTuple):
    """What `run_evaluation` leaves.

    Attributes:
        result: as in ``metrics.json``.
        files: the predictions and the result.
        already: whether all was done before.
    """

    result: dict[str, Any]
    files: list[Path]
    already: bool = False


def run_evaluation(options: EvaluateOptions, watcher: Watcher) -> Outcome:
    """Evaluate as the options say, into files.

    Raises:
        StepJepaError: what cannot be used; what is done by then is kept.
    """
    options.check()
    with contextlib.ExitStack() as stack:
        metrics = [stack.enter_context(metric) for metric in make_metrics(options.metric or (), options.metric_options)]
        place = find_model(str(options.model_name))
        _check_backend(options, place)
        record = read_record(place)
        options = _settled(options, record)
        questions, system = _read(options, place, record)
        tokenizer = load_place_tokenizer(place, options.trust_remote_code)
        prompter = Prompter(tokenizer, options.chat_template, options.plain, options.chat_template_kwargs)
        if metrics:
            drop_unaskable(questions, prompter)
            drop_unscorable(metrics, questions)
        questions.check()
        output = _output(options, place, questions, prompter.tokenizer)
        if output.complete is not None:
            return Outcome(output.complete, [output.answers(bool(metrics)), output.paths.metrics], already=True)
        task, words = _load(options, place, record, prompter, Task(questions, metrics, None, None, watcher=watcher))
        with output.opened():
            for line in _announcement(options, place, words, questions, system):
                watcher.say(line)
            answer(task, output)
            evaluation = score(task, output)
            records = [one.record() for one in evaluation.predictions] or evaluation.answer_nll
            result = _result(evaluation, options, output, system, place)
            return Outcome(result, output.finish(records, result))


def default_folder(options: EvaluateOptions, place: Place) -> Path:
    """``evaluation-<data>`` in the model's folder; ``evaluation-<model>-<data>`` here for a Hub id."""
    path = Path(str(options.test_file))
    data = re.sub(r"[^\w.-]+", "-", path.stem if path.exists() else str(options.test_file)).strip("-.") or "data"
    if place.folder is not None:
        return place.folder / f"evaluation-{data}"
    return Path(f"evaluation-{re.sub(r'[^a-zA-Z0-9_.-]+', '-', place.name)}-{data}")


def _check_backend(options: EvaluateOptions, place: Place) -> None:
    if options.backend != "vllm":
        return
    require_vllm()
    if place.base is not None and not options.no_lora:
        raise ConfigError(
            f"--backend vllm takes no adapter, and {place.name} is one; train with --merge_lora true, or use --backend "
            "transformers"
        )


def _settled(options: EvaluateOptions, record: TrainingRecord) -> EvaluateOptions:
    """The options with what they leave open."""
    settled = replace(options, batch_size=options.batch_size or _batch_size(options))
    if options.chat_template_kwargs is None and not options.chat_template and not options.plain:
        settled.chat_template_kwargs = record.settings.get("chat_template_kwargs")
    if options.max_length is None and NLL in (options.metric or ()):
        settled.max_length = record.settings.get("max_length")
    return settled


def _batch_size(options: EvaluateOptions) -> int:
    return VLLM_BATCH_SIZE if options.backend == "vllm" else BATCH_SIZE


def _read(options: EvaluateOptions, place: Place, record: TrainingRecord) -> tuple[QuestionSet, SystemPrompt]:
    columns = None
    if options.source_column and options.target_column:
        columns = PairColumns(options.source_column, options.target_column, options.choice_column)
    system = choose_system_prompt(options.system_prompt, options.use_test_prompts, record, place.name)
    source = RowSource(options.test_file, options.dataset_split)
    return read_questions(source, system, columns, options.max_examples), system


def _output(options: EvaluateOptions, place: Place, questions: QuestionSet, tokenizer: Any) -> Output:
    if options.output_file is not None:
        paths = Paths.of_file(Path(options.output_file))
    else:
        folder = Path(options.output_dir) if options.output_dir else default_folder(options, place)
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"--output_dir {folder}: is a file; give a folder")
        paths = Paths.in_folder(folder)
    identity = {
        **{name: getattr(options, name) for name in _DECIDING},
        "chat_template": hashlib.sha256(template_of(tokenizer).encode()).hexdigest()[:16],
        "model": fingerprint(place, options.no_lora),
        "data": questions.fingerprint(),
    }
    scoring = {"metric": options.metric, "metric_options": options.metric_options}
    return Output(paths, identity, scoring, options.overwrite_output_dir, [Path(str(options.test_file))])


def _load(
    options: EvaluateOptions, place: Place, record: TrainingRecord, prompter: Prompter, task: Task
) -> tuple[Task, str]:
    """The task with what answers it, and in words what that is."""
    size, tokenizer = options.batch_size or BATCH_SIZE, prompter.tokenizer
    task = replace(task, batch_size=size, temperature=options.temperature, seed=options.seed, pad_id=_pad_id(tokenizer))
    if options.backend == "vllm":
        return replace(task, teacher=make_vllm_teacher(place.base or place.name, prompter, options)), "vLLM"
    model, words = load_place(place, tokenizer, options)
    task = replace(task, model=model, vocabulary=softmax_size(model, tokenizer, place, record))
    if task.metrics:
        limits = options.max_new_tokens, options.top_p, size
        task.teacher = TransformersTeacher(model, prompter, *limits, overwrite="--overwrite_output_dir")
    if NLL in (options.metric or ()):
        task.likelihood = likelihood_of(task.questions, prompter, options.max_length, nll.positions_of(model))
    return task, f"{words}, batches of {size}"


def _pad_id(tokenizer: Any) -> int:
    pad = tokenizer.pad_token_id
    return (tokenizer.eos_token_id or 0) if pad is None else pad


def _announcement(
    options: EvaluateOptions, place: Place, words: str, questions: QuestionSet, system: SystemPrompt
) -> Iterator[str]:
    yield f"model    {place.name} ({words})"
    yield f"data     {questions.source}: {len(questions.questions)} of {questions.rows_read} rows"
    for line in questions.skipped_lines():
        yield f"         {line}"
    yield from system_prompt_lines(system, questions)
    if options.no_lora and place.base is None:
        yield f"note     --no_lora changes nothing: {place.name} is no adapter"


def _result(
    evaluation: Evaluation, options: EvaluateOptions, output: Output, system: SystemPrompt, place: Place
) -> dict[str, Any]:
    """What ``metrics.json`` holds."""
    versions = {"stepjepa": stepjepa.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    return {
        "metrics": evaluation.metrics,
        "generation": evaluation.generation,
        "rows": evaluation.rows,
        "system_prompt": {"text": system.text, "own_first": system.keep, "from": system.words},
        "settings": asdict(options),
        "versions": {**versions, "python": platform.python_version()},
        "identity": output.identity,
        "scoring": output.scoring,
        "weights": None if place.folder is None else weights_digest(place.folder),
    }
