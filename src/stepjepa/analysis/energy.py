"""The JEPA energy of the steps of solutions: how far the prediction that is read after a step is from the next step.

Steps, views and readouts are those of training (``step_jepa`` with every pair), and so is the forward pass: one packed pass
gives the states of both views and the likelihood of the solution. docs/score.md defines the numbers.

Shapes: P pairs, D width, V vocabulary.
"""

from __future__ import annotations

import hashlib
import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from stepjepa.analysis.best_of import best_of_records, first_of_each
from stepjepa.analysis.collect import EncodedSolution, Reading, collect_readings, encode_solutions
from stepjepa.analysis.draw import slug
from stepjepa.analysis.models import AnalyzedModel, energy_notes, load_analyzed, packed_form
from stepjepa.analysis.options import READING, AnalysisResult, EnergyOptions
from stepjepa.analysis.summary import energy_lines
from stepjepa.config.values import named_by_file
from stepjepa.data.chat import template_of
from stepjepa.data.prompts import Prompter
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import LISTED, TOTAL_COLUMN, make_splitter
from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.intervals import mean
from stepjepa.evaluation.metrics import Metric, make_metrics
from stepjepa.evaluation.models import find_model, fingerprint, read_record
from stepjepa.evaluation.questions import SystemPrompt, choose_system_prompt, drop_unaskable, read_questions
from stepjepa.evaluation.run import Task
from stepjepa.evaluation.scoring import drop_unscorable
from stepjepa.evaluation.solutions import SolutionSet, read_solutions, right_answers, sample_solutions
from stepjepa.generation.local import LocalGenerator
from stepjepa.generation.store import Output, Paths, json_line, saying_where
from stepjepa.generation.store import replace as replace_file
from stepjepa.modeling.extras import PREDICTORS_FILE
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.load import max_positions
from stepjepa.objectives.base import objective_of
from stepjepa.objectives.step_jepa import StepJEPA
from stepjepa.training.encoding import make_renderer, pair_columns, settings_for
from stepjepa.training.options import JEPAOptions
from stepjepa.utils.failures import saying_out_of_memory
from stepjepa.utils.files import check_writable, json_bytes
from stepjepa.utils.terminal import Bar, ending, show_log
from stepjepa.version import __version__

Distance = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of (P, D) and (P, D), (P,)
# Not as the run had them: they are about its own files, and its tokenizer brings its template.
_OF_FILES = {"source_column", "target_column", "choice_column", "plain", "chat_template"}
_SAMPLED = "temperature top_p max_new_tokens batch_size seed best_of dtype attn_implementation max_examples".split()
_ENERGIES = ("energy", "shuffled", "relative")


def energies(options: EnergyOptions, given: Sequence[str] = ()) -> AnalysisResult:
    """Score solutions: ``stepjepa analyze --energy``.

    Raises:
        StepJepaError: what cannot be used; what an earlier command has written is unchanged then.
    """
    options.check()
    name = slug(Path(options.file).stem if Path(options.file).exists() else options.file)
    path = Path(options.output_file or f"energies-{name}.jsonl").expanduser()
    record = path.with_name(f"{path.stem}.metrics.json")
    names = (f"{path.stem}.samples.{kind}" for kind in ("jsonl", "none", "json", "partial"))
    samples, none, about, partial = (path.with_name(name) for name in names)
    _check_files((path, record), options)
    transformers.utils.logging.disable_progress_bar()  # of loading
    show_log(logging.WARNING)
    kept = "sampled solutions are kept" if options.questions else "nothing is written yet"
    with ExitStack() as stack:
        metric = stack.enter_context(_metric(options)) if options.best_of else None
        bar = stack.enter_context(Bar())
        stack.enter_context(ending("analyze", lambda: kept))
        for line in given:
            bar.say(f"note     {line}")
        model, method = load_scorer(options)
        system = choose_system_prompt(options.system_prompt, False, model.record, model.place.name)
        bar.say(f"model    {model.place.name} ({model.description})")
        bar.say(f"system   {system.origin}")
        for line in energy_notes(model.record):
            bar.say(f"note     {line}")
        if options.questions:
            solutions = _sampled(options, model, method, system, metric, Paths((samples, none), about, partial), bar)
        else:
            rows = RowSource(options.solutions, options.dataset_split)
            solutions = read_solutions(rows, system, pair_columns(method), options.max_examples)
        with saying_where(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        lines, result = _scored(options, model, method, solutions, metric, bar)
        replace_file(path, map(json_line, lines))
        replace_file(record, [json_bytes(result, indent=2), b"\n"])
    files = (path, record, *([samples] if options.questions else []))
    return AnalysisResult(result, files, (*energy_lines(result), *(f"{'written':<14} {file}" for file in files)))


def load_scorer(options: EnergyOptions) -> tuple[AnalyzedModel, JEPAOptions]:
    """The model with its predictors and head, and how it reads steps and views: every pair, by the options, else as its run.

    Raises:
        ConfigError: it cannot be loaded, or lacks the predictors with which it was trained; a value that cannot be used.
    """
    place = find_model(str(options.model_name))
    record = read_record(place)
    own = record.settings
    values = {name: own[name] for name in READING if own.get(name) is not None and name not in _OF_FILES}
    if own.get("multi_horizon"):
        values["horizon"] = min(own["multi_horizon"])
    if not options.jepa_loss and named_by_file(values.get("jepa_loss")):
        raise ConfigError(
            f"--model_name {place.name}: was trained with a loss of one's own, whose file is not run because a folder names "
            f"it; give --jepa_loss {values['jepa_loss']}, or another one"
        )
    values |= {name: getattr(options, name) for name in READING if getattr(options, name) is not None}
    if values.get("jepa_loss") == "infonce":
        values["jepa_loss"] = "cosine"  # InfoNCE's own value depends on the batch; what it compares are cosines
    if options.chat_template or options.plain:
        values["chat_template_kwargs"] = options.chat_template_kwargs
    method = JEPAOptions(**{**values, "objective": StepJEPA.name, "step_pairs": "all", "target_grad": True})
    method.check()
    model = load_analyzed(place, record, method, options)
    wanted = model.trained_predictors if options.predictors is None else options.predictors
    if wanted and not model.predictors.count:
        raise ConfigError(
            f"--model_name {place.name}: energies are to be read at {wanted} predictor tokens, which its folder does not "
            f"hold ({PREDICTORS_FILE} is missing); give the run's folder, or read sources at their last token with "
            "--predictors 0"
        )
    return model, replace(method, predictors=model.predictors.count, predictor_order=model.predictors.order)


def _sampled(
    options: EnergyOptions,
    model: AnalyzedModel,
    method: JEPAOptions,
    system: SystemPrompt,
    metric: Metric | None,
    paths: Paths,
    bar: Bar,
) -> SolutionSet:
    """Solutions that the model samples, in a file next to the output; what was sampled before is kept."""
    prompter = Prompter(model.tokenizer, method.chat_template, method.plain, method.chat_template_kwargs)
    rows = RowSource(options.questions, options.dataset_split)
    questions = read_questions(rows, system, pair_columns(method), options.max_examples)
    drop_unaskable(questions, prompter)
    if metric is not None:
        drop_unscorable([metric], questions)
    questions.check()
    bar.say(f"data     {questions.source}: {len(questions.questions)} of {questions.rows_read} questions")
    for line in questions.skipped_lines():
        bar.say(f"         {line}")
    identity = {
        **{name: getattr(options, name) for name in _SAMPLED},
        "chat_template": hashlib.sha256(template_of(prompter.tokenizer).encode()).hexdigest()[:16],
        "model": fingerprint(model.place),
        "data": questions.fingerprint(),
    }
    output = Output(paths, identity, {}, options.overwrite_output_dir, [Path(str(options.questions))])
    limits = options.max_new_tokens, options.top_p, options.batch_size
    generator = LocalGenerator(model.model, prompter, *limits, overwrite="--overwrite_output_dir")
    task = Task(questions, [], generator, temperature=options.temperature, seed=options.seed, bar=bar)
    path = sample_solutions(task, output, int(options.best_of or 0))
    return read_solutions(RowSource(path), system, pair_columns(method))


def _scored(
    options: EnergyOptions,
    model: AnalyzedModel,
    method: JEPAOptions,
    found: SolutionSet,
    metric: Metric | None,
    bar: Bar,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A record for each solution, and what all of them come to."""
    bar.say(f"scored   {found.source}: {len(found.solutions)} of {found.rows_read} rows")
    for text in found.skipped_lines():
        bar.say(f"         {text}")
    short, verdicts = 0, list[tuple[bool, str | None]]()
    if metric is not None:  # before the model works
        groups, short = first_of_each([one.question_key for one in found.solutions], int(options.best_of or 0))
        found.solutions = [found.solutions[number] for group in groups for number in group]
        verdicts = right_answers(metric, found.solutions)
    # The chats are made already, whatever the columns were.
    method = replace(method, source_column=None, target_column=None, choice_column=None)
    encoded, report = _encoded(options, model, method, found)
    for text in report.steps.lines():
        bar.say(f"         {text}")
    readable = [one for one in encoded if one is not None]
    if not readable:
        first = next(iter(report.first_skipped.values()))
        raise DataError(f"none of {len(encoded)} solutions can be read by this model; first: {first}")
    bar.begin("energies", len(readable), 0)
    with saying_out_of_memory(f"out of memory with {options.batch_size} solutions at once; lower --batch_size"):
        vocabulary, collator = packed_form(model, method)
        readings = collect_readings(
            model.model, collator, [one.example for one in readable], vocabulary, options.batch_size, bar.step
        )
    questions = [one.question_key for one in found.solutions]
    numbers = _records(method, encoded, readings, questions, options.shuffled_targets, options.seed)
    lines = [
        {"index": one.index, "question": one.question, **more}
        for one, more in zip(found.solutions, numbers, strict=True)
    ]
    result = _summary(lines, found, report)
    if metric is not None:
        count = int(options.best_of or 0)
        for number, (line, (right, final)) in enumerate(zip(lines, verdicts, strict=True)):
            line |= {"sample": number % count + 1, "answer": final, "correct": right}
        rules = best_of_records(lines, count)
        result["best_of"] = {**rules, "questions_with_fewer": short, "metric": options.metric}
    versions = {"stepjepa": __version__, "torch": torch.__version__, "transformers": transformers.__version__}
    return lines, {
        **result,
        "method": {name: getattr(method, name) for name in READING},
        "settings": asdict(options),
        "versions": {**versions, "python": platform.python_version()},
    }


def _encoded(
    options: EnergyOptions, model: AnalyzedModel, method: JEPAOptions, found: SolutionSet
) -> tuple[list[EncodedSolution | None], DataReport]:
    """The solutions as training would read them."""
    if method.step_splitter == LISTED and found.generated:
        raise ConfigError("generated solutions come without a column of steps; add --step_splitter separator")
    # What a row of predictions says about steps is about another answer.
    names = () if found.generated else (method.steps_column, TOTAL_COLUMN)
    rows = [
        {"messages": one.chat, **{name: one.row[name] for name in names if name in one.row}} for one in found.solutions
    ]
    source = RowSource(rows)
    source.name = found.source
    renderer = make_renderer(model.tokenizer, method)
    if renderer is None:
        raise ConfigError("the model's tokenizer has no chat template; give --chat_template FILE, or --plain")
    settled, splitter = model.record.splitter, None  # what the run's step_splitter=auto was
    if options.step_splitter is None and model.record.settings.get("step_splitter") == "auto" and settled:
        splitter = make_splitter(settled, method.step_separator)
    settings = settings_for(source, method, max_positions(causal_lm(model.model)), splitter)
    placed = [(one.place, row) for one, row in zip(found.solutions, rows, strict=True)]
    return encode_solutions(placed, model.tokenizer, renderer, settings)


def shuffled_energies(
    distance: Distance, source_PD: torch.Tensor, target_PD: torch.Tensor, groups_P: np.ndarray, count: int, seed: int
) -> np.ndarray:
    """Mean energy of each source against targets of other groups (questions), (P,) float64; nan where there are none.

    `count` targets at most are sampled from all once, so that every source is compared with the same ones but for those of
    its own question.

    Args:
        distance: of (P, D) sources and (P, D) targets, (P,).
        groups_P: (P,), which question a pair is of.
    """
    pairs = len(groups_P)
    total, other = np.zeros(pairs), np.zeros(pairs, np.int64)
    for number in np.random.default_rng(seed).permutation(pairs)[:count].tolist():
        others = groups_P != groups_P[number]
        energies = distance(source_PD, target_PD[number].expand_as(source_PD)).double().numpy()
        total += np.where(others, energies, 0.0)
        other += others
    return np.where(other > 0, total / np.maximum(other, 1), np.nan)


def _records(
    method: JEPAOptions,
    encoded: Sequence[EncodedSolution | None],
    readings: Sequence[Reading],
    questions: Sequence[str],
    count: int,
    seed: int,
) -> list[dict[str, Any]]:
    """The numbers of every solution; `questions` says which question each is of."""
    own = shuffled = np.zeros(0)
    keys = {key: number for number, key in enumerate(dict.fromkeys(questions))}
    pairs = [0 if one is None else len(one.sources) for one in encoded]
    if sum(pairs):

        def distance(source_PD: torch.Tensor, target_PD: torch.Tensor) -> torch.Tensor:
            return objective_of(method).distances(source_PD, target_PD)

        views = torch.cat([one.source_states for one in readings]), torch.cat([one.target_states for one in readings])
        own = distance(*views).double().numpy()
        groups_P = np.repeat([keys[key] for key in questions], pairs)
        shuffled = shuffled_energies(distance, *views, groups_P, count, seed)
    values = iter(zip(own.tolist(), shuffled.tolist(), strict=True))
    left, found = iter(readings), list[dict[str, Any]]()
    for one in encoded:
        reading = None if one is None else next(left)
        of_step = {} if one is None else {step: next(values) for step in one.sources}
        steps = [_step(number, text, of_step.get(number)) for number, text in enumerate(one.steps if one else ())]
        likelihood, tokens = (None, 0) if reading is None else (reading.log_likelihood, reading.tokens)
        found.append({
            "num_steps": len(steps),
            **{name: mean(_values(steps, name)).value for name in _ENERGIES},
            "log_likelihood": likelihood,
            "log_likelihood_mean": None if likelihood is None else likelihood / tokens,
            "tokens": tokens,
            "steps": steps,
        })  # fmt: skip
    return found


def _step(number: int, text: str, energies: tuple[float, float] | None) -> dict[str, Any]:
    own, other = energies or (None, None)
    other = None if other is None or np.isnan(other) else other
    relative = None if own is None or other is None else own - other
    return {"step": number + 1, "text": text, "energy": own, "shuffled": other, "relative": relative}


def _summary(lines: Sequence[Mapping[str, Any]], found: SolutionSet, report: DataReport) -> dict[str, Any]:
    """Means over the solutions that have a value, with their intervals, and what has none."""
    steps = [step for line in lines for step in line["steps"]]
    relative = _values(steps, "relative")
    return {
        "solutions": len(lines),
        "without_energy": sum(line["energy"] is None for line in lines),
        "why_without": {**report.rows_skipped, **report.examples_without_pairs},
        "truncated": report.answers_truncated,
        "rows": {"read": found.rows_read, "skipped": dict(found.skipped), "first_skipped": found.first_skipped},
        "pairs": len(_values(steps, "energy")),
        "nearer_than_shuffled": sum(value < 0 for value in relative) / len(relative) if relative else None,
        "means": {name: mean(_values(lines, name))._asdict() for name in (*_ENERGIES, "log_likelihood_mean")},
    }


def _values(records: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [record[name] for record in records if record[name] is not None]


def _metric(options: EnergyOptions) -> Metric:
    (metric,) = make_metrics([str(options.metric)], options.metric_options) or (None,)
    if metric is None or (metric.kind != "accuracy" and ":" not in metric.name):
        raise ConfigError(f"--metric {options.metric}: --best_of needs one that says right or wrong")
    return metric


def _check_files(paths: Sequence[Path], options: EnergyOptions) -> None:
    """Refuse what cannot be written, or may not be written over."""
    for path in paths:
        if path.is_dir():
            raise ConfigError(f"--output_file {paths[0]}: {path} is a folder")
        if path.exists() and Path(options.file).exists() and path.samefile(options.file):
            raise ConfigError(f"{path}: the scoring would write over its input; name another --output_file")
        if path.exists() and not options.overwrite_output_dir:
            raise ConfigError(
                f"{path} is there already; give another --output_file, or replace it with --overwrite_output_dir"
            )
    check_writable(paths[0].parent, "--output_file")
