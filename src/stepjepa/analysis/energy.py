"""``stepjepa analyze --energy``: the JEPA energy of the steps of solutions, and best of N by it.

The energy is how far the prediction that is read after a step is from the next step. Steps, views and readouts are those of
training (``step_jepa`` with every pair), and so is the forward pass: one packed pass gives the states of both views and the
likelihood of the solution. docs/score.md defines the numbers.

Shapes: P pairs, D width.
"""

from __future__ import annotations

import hashlib
import logging
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from stepjepa.analysis.models import AnalyzedModel, collator_of, load_analyzed
from stepjepa.analysis.options import READING, AnalysisResult, EnergyOptions, slug
from stepjepa.analysis.states import FINAL, EncodedSolution, encode_solutions, read_states
from stepjepa.data.answers import answers_match
from stepjepa.data.chat_template import template_of
from stepjepa.data.prompts import Prompter
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import LISTED, TOTAL_COLUMN, make_splitter
from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.intervals import Interval, mcnemar_p, mean, paired_counts, paired_difference, share
from stepjepa.evaluation.metrics.base import Metric
from stepjepa.evaluation.metrics.registry import make_metrics
from stepjepa.evaluation.models import find_model, fingerprint, read_record
from stepjepa.evaluation.questions import SystemPrompt, choose_system_prompt, drop_unaskable, read_questions
from stepjepa.evaluation.run import Task
from stepjepa.evaluation.scoring import drop_unscorable
from stepjepa.evaluation.solutions import SolutionSet, read_solutions, right_answers, sample_solutions
from stepjepa.forest.layout import label_indices
from stepjepa.generation.local import LocalGenerator
from stepjepa.generation.store import Output, Paths, json_line, saying_where
from stepjepa.generation.store import replace as replace_file
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.load import max_positions
from stepjepa.objectives.base import objective_of
from stepjepa.training.encoding import make_renderer, pair_columns, settings_for
from stepjepa.training.options import JEPAOptions
from stepjepa.utils.failures import saying_out_of_memory
from stepjepa.utils.files import check_writable, json_bytes
from stepjepa.utils.progress import Bar, ending
from stepjepa.utils.terminal import show_log
from stepjepa.version import __version__

Distance = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of (P, D) and (P, D), (P,)
Line = dict[str, Any]  # a solution, as the file of energies has it
# Not as the run had them: they are about its own files, and its tokenizer brings its template.
_OF_FILES = {"source_column", "target_column", "choice_column", "plain", "chat_template"}
_SAMPLED = "temperature top_p max_new_tokens batch_size seed best_of dtype attn_implementation max_examples".split()
_ENERGIES = ("energy", "shuffled", "relative")
# Signal -> the number of a line that it is, its name in tables, and whether a high value is the better one.
SIGNALS = {
    "relative": ("relative", "lowest relative energy", False),
    "energy": ("energy", "lowest energy", False),
    "shuffled": ("shuffled", "lowest shuffled energy (control)", False),
    "likelihood_mean": ("log_likelihood_mean", "highest likelihood a token", True),
    "likelihood_sum": ("log_likelihood", "highest likelihood in all", True),
}
RULES = {
    "random": "random (expected)",
    "first": "the first sample",
    "majority": "majority of answers",
    **{name: text for name, (_, text, _) in SIGNALS.items()},
    "oracle": "oracle (pass@N)",
}


def energies(options: EnergyOptions, given: Sequence[str] = ()) -> AnalysisResult:
    """Score solutions: ``stepjepa analyze --energy``.

    Raises:
        StepJepaError: what cannot be used; what an earlier command has written is unchanged then.
    """
    options.check()
    name = slug(Path(options.file).stem if Path(options.file).exists() else options.file)
    path = Path(options.output_file or f"energies-{name}.jsonl").expanduser()
    record = path.with_name(f"{path.stem}.metrics.json")
    for one in (path, record):
        if one.is_dir():
            raise ConfigError(f"--output_file {path}: {one} is a folder")
        if one.exists() and Path(options.file).exists() and one.samefile(options.file):
            raise ConfigError(f"{one}: the scoring would write over its input; name another --output_file")
        if one.exists() and not options.overwrite_output_dir:
            advice = "give another --output_file, or replace it with --overwrite_output_dir"
            raise ConfigError(f"{one} is there already; {advice}")
    check_writable(path.parent, "--output_file")
    transformers.utils.logging.disable_progress_bar()  # of loading
    show_log(logging.WARNING)
    kept = "sampled solutions are kept" if options.questions else "nothing is written yet"
    with ExitStack() as stack:
        metric: Metric | None = None
        if options.best_of:
            (metric,) = made = make_metrics([str(options.metric)], options.metric_options)
            if made[0].kind != "accuracy" and ":" not in made[0].name:
                raise ConfigError(f"--metric {options.metric}: --best_of needs one that says right or wrong")
            stack.enter_context(made[0])
        bar = stack.enter_context(Bar())
        stack.enter_context(ending("analyze", lambda: kept))
        for line in given:
            bar.say(f"note     {line}")
        model = load_scorer(options)
        system = choose_system_prompt(options.system_prompt, False, model.record, model.place.name)
        bar.say(f"model    {model.place.name} ({model.description})")
        bar.say(f"system   {system.origin}")
        for line in _differences(model.record.settings):
            bar.say(f"note     {line}")
        source, files = RowSource(options.file, options.dataset_split), [path, record]
        if options.questions:
            files.append(_sample(options, model, source, system, metric, path, bar))
            solutions = read_solutions(RowSource(files[-1]), system, pair_columns(model.method))
        else:
            solutions = read_solutions(source, system, pair_columns(model.method), options.max_examples)
        with saying_where(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        lines, result = _score(options, model, solutions, metric, bar)
        replace_file(path, map(json_line, lines))
        replace_file(record, [json_bytes(result, indent=2), b"\n"])
    return AnalysisResult(result, tuple(files), (*_summary(result), *(f"{'written':<14} {file}" for file in files)))


def load_scorer(options: EnergyOptions) -> AnalyzedModel:
    """The model with its predictors and head, which reads steps and views by the options, else as its run; every pair.

    Raises:
        ConfigError: it cannot be loaded, or lacks the predictors with which it was trained; a value that cannot be used.
    """
    place = find_model(str(options.model_name))
    own = read_record(place).settings
    values = {name: own[name] for name in READING if own.get(name) is not None and name not in _OF_FILES}
    if own.get("multi_horizon"):
        values["horizon"] = min(own["multi_horizon"])
    values |= {name: getattr(options, name) for name in READING if getattr(options, name) is not None}
    if values.get("jepa_loss") == "infonce":
        values["jepa_loss"] = "cosine"  # InfoNCE's own value depends on the batch; what it compares are cosines
    method = JEPAOptions(**{**values, "objective": "step_jepa", "step_pairs": "all", "target_grad": True})
    method.check()
    model = load_analyzed(place, method, options)
    if model.lacking:
        raise ConfigError(
            f"--model_name {place.name}: energies are to be read at {model.lacking} predictor tokens, which its folder does "
            "not hold (predictors.safetensors is missing); give the run's folder, or read sources at their last token with "
            "--predictors 0"
        )
    return model


def _differences(own: Mapping[str, Any]) -> Iterator[str]:
    """Where the energy is not what the model was trained on."""
    if own and own.get("objective") != "step_jepa":
        yield f"it was trained with --objective {own.get('objective')}; no step predicted the next one there"
    elif own and not own.get("lbd"):
        yield "it was trained with --lbd 0; no step predicted the next one there"
    elif own.get("step_pairs") == "first":
        yield "it was trained with --step_pairs first: only step 1 -> step 2; all pairs are read here"
    if own.get("target_encoder") == "ema":
        yield "it was trained with an EMA target encoder; targets are encoded by the model itself here"


def _sample(
    options: EnergyOptions,
    model: AnalyzedModel,
    source: RowSource,
    system: SystemPrompt,
    metric: Metric | None,
    path: Path,
    bar: Bar,
) -> Path:
    """A file of solutions that the model samples, next to the output; what was sampled before is kept."""
    method = model.method
    prompter = Prompter(model.tokenizer, method.chat_template, method.plain, method.chat_template_kwargs)
    questions = read_questions(source, system, pair_columns(method), options.max_examples)
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
    samples, none, about, partial = (
        path.with_name(f"{path.stem}.samples.{kind}") for kind in ("jsonl", "none", "json", "partial")
    )
    paths = Paths((samples, none), about, partial)
    output = Output(paths, identity, {}, options.overwrite_output_dir, [Path(str(options.questions))])
    limits = options.max_new_tokens, options.top_p, options.batch_size
    generator = LocalGenerator(model.model, prompter, *limits, overwrite="--overwrite_output_dir")
    task = Task(questions, [], generator, temperature=options.temperature, seed=options.seed, bar=bar)
    return sample_solutions(task, output, int(options.best_of or 0))


def _encode(
    options: EnergyOptions, model: AnalyzedModel, found: SolutionSet
) -> tuple[list[EncodedSolution | None], DataReport]:
    """The solutions as training would read them."""
    # The chats are made already, whatever the columns were.
    method = replace(model.method, source_column=None, target_column=None, choice_column=None)
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


def _score(
    options: EnergyOptions, model: AnalyzedModel, found: SolutionSet, metric: Metric | None, bar: Bar
) -> tuple[list[Line], dict[str, Any]]:
    """A line for each solution, and what all of them come to."""
    bar.say(f"scored   {found.source}: {len(found.solutions)} of {found.rows_read} rows")
    for text in found.skipped_lines():
        bar.say(f"         {text}")
    count, fewer, verdicts = int(options.best_of or 0), 0, list[tuple[bool, str | None]]()
    if metric is not None:  # before the model works
        groups, fewer = first_of_each([one.question_key for one in found.solutions], count)
        found.solutions = [found.solutions[number] for group in groups for number in group]
        verdicts = right_answers(metric, found.solutions)
    encoded, report = _encode(options, model, found)
    for text in report.steps.lines():
        bar.say(f"         {text}")
    lines = _lines(options, model, found, encoded, report, bar)
    steps = [step for line in lines for step in line["steps"]]
    relative = _values(steps, "relative")
    result: dict[str, Any] = {
        "solutions": len(lines),
        "without_energy": sum(line["energy"] is None for line in lines),
        "why_without": {**report.rows_skipped, **report.examples_without_pairs},
        "truncated": report.answers_truncated,
        "rows": {"read": found.rows_read, "skipped": dict(found.skipped), "first_skipped": found.first_skipped},
        "pairs": len(_values(steps, "energy")),
        "nearer_than_shuffled": sum(value < 0 for value in relative) / len(relative) if relative else None,
        "means": {name: mean(_values(lines, name))._asdict() for name in (*_ENERGIES, "log_likelihood_mean")},
    }
    if metric is not None:
        for number, (line, (right, final)) in enumerate(zip(lines, verdicts, strict=True)):
            line |= {"sample": number % count + 1, "answer": final, "correct": right}
        rules = best_of([lines[start : start + count] for start in range(0, len(lines), count)])
        result["best_of"] = {**rules, "questions_with_fewer": fewer, "metric": options.metric}
    versions = {"stepjepa": __version__, "torch": torch.__version__, "transformers": transformers.__version__}
    return lines, {
        **result,
        "method": {name: getattr(model.method, name) for name in READING},
        "settings": asdict(options),
        "versions": {**versions, "python": platform.python_version()},
    }


def _lines(
    options: EnergyOptions,
    model: AnalyzedModel,
    found: SolutionSet,
    encoded: Sequence[EncodedSolution | None],
    report: DataReport,
    bar: Bar,
) -> list[Line]:
    """The energies and likelihoods of every solution."""
    examples = [one.example for one in encoded if one is not None]
    if not examples:
        first = next(iter(report.first_skipped.values()))
        raise DataError(f"none of {len(encoded)} solutions can be read by this model; first: {first}")
    bar.begin("energies", len(examples), 0)
    with saying_out_of_memory(f"out of memory with {options.batch_size} solutions at once; lower --batch_size"):
        vocabulary, collator = collator_of(model)
        name = model.place.name
        read = read_states(model.model, name, collator, examples, (FINAL,), vocabulary, options.batch_size, bar.step)
    objective, keys = objective_of(model.method), [one.question_key for one in found.solutions]
    views = torch.from_numpy(read.source[0]), torch.from_numpy(read.target[0])
    groups_P = np.repeat(
        np.unique(keys, return_inverse=True)[1], [0 if one is None else len(one.sources) for one in encoded]
    )
    own, shuffled = np.zeros(0), np.zeros(0)
    if len(groups_P):
        own = objective.distances(*views).double().numpy()
        shuffled = shuffled_energies(objective.distances, *views, groups_P, options.shuffled_targets, options.seed)
    pairs = iter(zip(own.tolist(), shuffled.tolist(), strict=True))
    likelihoods, lines = iter(read.log_likelihoods.tolist()), list[Line]()
    for solution, one in zip(found.solutions, encoded, strict=True):
        of_step = {} if one is None else {step: next(pairs) for step in one.sources}
        steps = []
        for number, text in enumerate(() if one is None else one.steps):
            energy, other = of_step.get(number, (None, None))
            other = None if other is None or np.isnan(other) else other
            relative = None if energy is None or other is None else energy - other
            steps.append({"step": number + 1, "text": text, "energy": energy, "shuffled": other, "relative": relative})
        likelihood = None if one is None else next(likelihoods)
        tokens = 0 if one is None else len(label_indices(one.example)[0])
        lines.append({
            "index": solution.index,
            "question": solution.question,
            "num_steps": len(steps),
            **{name: mean(_values(steps, name)).value for name in _ENERGIES},
            "log_likelihood": likelihood,
            "log_likelihood_mean": None if likelihood is None else likelihood / tokens,
            "tokens": tokens,
            "steps": steps,
        })  # fmt: skip
    return lines


def shuffled_energies(
    distance: Distance, source_PD: torch.Tensor, target_PD: torch.Tensor, groups_P: np.ndarray, count: int, seed: int
) -> np.ndarray:
    """Mean energy of each source against targets of other groups (questions), (P,) float64; nan where there are none.

    `count` targets at most are sampled from all once, so that every source is compared with the same ones but for those of
    its own question.
    """
    total, other = np.zeros(len(groups_P)), np.zeros(len(groups_P), np.int64)
    for number in np.random.default_rng(seed).permutation(len(groups_P))[:count].tolist():
        others = groups_P != groups_P[number]
        total += np.where(others, distance(source_PD, target_PD[number].expand_as(source_PD)).double().numpy(), 0.0)
        other += others
    return np.where(other > 0, total / np.maximum(other, 1), np.nan)


def first_of_each(keys: Sequence[str], count: int) -> tuple[list[list[int]], int]:
    """Indices of the first `count` of each key, in the order in which the keys come; and how many keys have fewer, which
    are left out.

    Raises:
        DataError: no key has so many.
    """
    indices: dict[str, list[int]] = {}
    for index, key in enumerate(keys):
        indices.setdefault(key, []).append(index)
    enough = [group[:count] for group in indices.values() if len(group) >= count]
    if not enough:
        most = max(map(len, indices.values()), default=0)
        raise DataError(
            f"--best_of {count}: no question has {count} solutions, the most is {most}; lower it, or let the model sample "
            "them with --questions FILE"
        )
    return enough, len(indices) - len(enough)


def choose(question: Sequence[Line], rule: str) -> int:
    """The index of the best solution by a signal, or by the majority of answers.

    A solution without a value comes after all that have one, and among equals the first is chosen. Solutions without an
    answer do not vote; of answers that are equally common the one that came first wins.
    """
    if rule != "majority":
        return max(range(len(question)), key=lambda index: (_worth(question[index], rule), -index))
    groups: list[list[int]] = []
    for index, one in enumerate(question):
        same = next((group for group in groups if answers_match(question[group[0]]["answer"], one["answer"])), None)
        if same is not None:
            same.append(index)
        elif one["answer"] is not None:
            groups.append([index])
    return max(groups, key=len)[0] if groups else 0


def within_auroc(questions: Sequence[Sequence[Line]], signal: str) -> dict[str, Any]:
    """How well a signal tells right solutions from wrong ones of the same question: of each question that has both, the
    area under the ROC curve (equal values count half); 0.5 is chance.

    Returns:
        ``value``, the mean over those questions, with the ends of its t interval; how many ``questions`` and ``pairs``.
    """
    areas, pairs = [], 0
    for question in questions:
        right, wrong = (
            [_worth(one, signal) for one in question if one["correct"] is verdict] for verdict in (True, False)
        )
        if right and wrong:
            won = [0.5 * ((good > bad) + (good >= bad)) for good in right for bad in wrong]
            areas.append(sum(won) / len(won))
            pairs += len(won)
    value, low, high = mean(areas)
    ends = {"low": None if low is None else max(low, 0.0), "high": None if high is None else min(high, 1.0)}
    return {"value": value, **ends, "questions": len(areas), "pairs": pairs}


def best_of(questions: Sequence[Sequence[Line]]) -> dict[str, Any]:
    """The accuracy of every rule, and what it differs by from chance and from the majority.

    Args:
        questions: N lines each, in the order in which they were sampled.

    Returns:
        ``questions``, ``samples``; ``rules``: rule -> ``value``, ``low``, ``high`` (95 %), ``against_random`` and
        ``against_majority`` alike; ``auroc``: signal -> see `within_auroc`; ``mixed``: questions with right and wrong
        solutions, on which alone a choice matters.
    """
    chance = [sum(one["correct"] for one in question) / len(question) for question in questions]
    picked = {name: [one[choose(one, name)]["correct"] for one in questions] for name in ("majority", *SIGNALS)}
    picked["first"] = [question[0]["correct"] for question in questions]
    picked["oracle"] = [any(one["correct"] for one in question) for question in questions]
    rules: dict[str, Any] = {"random": mean(chance)._asdict()}
    for name in list(RULES)[1:]:
        right = picked[name]
        less = mean([one - expected for one, expected in zip(right, chance, strict=True)])
        rules[name] = {**share(sum(right), len(right))._asdict(), "against_random": less._asdict()}
        if name not in ("majority", "oracle"):
            counts = paired_counts(picked["majority"], right)
            rules[name]["against_majority"] = {**paired_difference(*counts)._asdict(), "p": mcnemar_p(*counts[1:3])}
    return {
        "questions": len(questions),
        "samples": len(questions[0]),
        "mixed": sum(0 < value < 1 for value in chance),
        "rules": rules,
        "auroc": {name: within_auroc(questions, name) for name in SIGNALS},
    }


def best_of_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The result as two tables."""
    mixed = f"{result['mixed']} have right and wrong solutions"
    yield f"best of {result['samples']} on {result['questions']} questions; {mixed}; 95 % intervals, %"
    wide = max(map(len, RULES.values())) + 2
    yield f"{'':<{wide}}{'accuracy':<24}{'less random':<24}less majority"
    for name, text in RULES.items():
        rule = result["rules"][name]
        cells = _percent(rule), *(_percent(rule.get(f"against_{base}"), "+") for base in ("random", "majority"))
        yield f"{text:<{wide}}{cells[0]:<24}{cells[1]:<24}{cells[2]}".rstrip()
    yield from ("", "right against wrong solutions of the same question: area under the ROC curve (0.5 is chance)")
    for name, found in result["auroc"].items():
        value = "-" if found["value"] is None else f"{found['value']:.3f}"
        value += "" if found["low"] is None else f" ({found['low']:.3f} to {found['high']:.3f})"
        yield f"{RULES[name]:<{wide}}{value:<24}{found['questions']} questions, {found['pairs']} pairs"


def _summary(result: Mapping[str, Any]) -> Iterator[str]:
    """The result as text."""
    without = f"; {result['without_energy']} without an energy" if result["without_energy"] else ""
    yield f"{'solutions':<14} {result['solutions']}, {result['pairs']} pairs of steps{without}"
    units = {"shuffled": " (steps of other questions)", "log_likelihood_mean": " (nats a token)"}
    for name, one in result["means"].items():
        if one["value"] is not None:
            ends = "" if one["low"] is None else f", 95 % interval {one['low']:.5g} to {one['high']:.5g}"
            yield f"{name.removesuffix('_mean').replace('_', '-'):<14} {one['value']:.5g}{ends}{units.get(name, '')}"
    if result["nearer_than_shuffled"] is not None:
        nearer = 100 * result["nearer_than_shuffled"]
        yield f"{'':<14} {nearer:.1f} % of the predictions are nearer to their own next step than to those"
    if result["truncated"]:
        yield f"{'cut':<14} {result['truncated']} solutions at max_length; the rest of them is not scored"
    if "best_of" in result:
        yield from ("", *best_of_lines(result["best_of"]))
        if fewer := result["best_of"]["questions_with_fewer"]:
            yield f"{fewer} questions have fewer solutions and are left out"
        yield ""


def _worth(line: Line, signal: str) -> float:
    name, _, high = SIGNALS[signal]
    return float("-inf") if line[name] is None else line[name] if high else -line[name]


def _values(records: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [record[name] for record in records if record[name] is not None]


def _percent(found: Mapping[str, Any] | None, sign: str = "") -> str:
    if found is None:
        return ""
    value, low, high = (None if found[name] is None else 100 * found[name] for name in Interval._fields)
    return f"{value:{sign}.1f}" + ("" if low is None else f" ({low:{sign}.1f} to {high:{sign}.1f})")
