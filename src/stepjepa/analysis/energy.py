"""``stepjepa analyze --energy``: the JEPA energy of the steps of solutions, and best of N by it.

The energy is how far the prediction that is read after a step is from the next step. Steps, views and readouts are those of
training (``step_jepa`` with every pair), and so is the forward pass: one packed pass gives the states of both views and the
likelihood of the solution. docs/score.md defines the numbers.

Shapes: P pairs, D width.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from stepjepa.analysis import models
from stepjepa.analysis.models import AnalyzedModel, EncodedSolution
from stepjepa.analysis.options import READING, RULES, AnalysisResult, EnergyOptions, energy_lines
from stepjepa.analysis.states import read_states
from stepjepa.config.option import Names
from stepjepa.data.answers import answers_match
from stepjepa.data.sources import RowSource
from stepjepa.data.tokens import Prompter
from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation import questions
from stepjepa.evaluation.intervals import mcnemar_p, mean, paired_counts, paired_difference, share
from stepjepa.evaluation.metrics import Metric, make_metrics
from stepjepa.evaluation.models import digests
from stepjepa.evaluation.questions import SolutionSet, SystemPrompt
from stepjepa.evaluation.run import Task, drop_useless, sample_solutions
from stepjepa.forest.layout import label_indices
from stepjepa.generation.local import LocalGenerator
from stepjepa.generation.store import Output, Paths, json_line, saying_where
from stepjepa.generation.store import replace as replace_file
from stepjepa.objectives.base import objective_of
from stepjepa.utils.files import check_writable, json_bytes
from stepjepa.utils.terminal import Bar, ending, show_log
from stepjepa.utils.text import slug
from stepjepa.version import __version__

Line = dict[str, Any]  # a solution, as the file of energies has it
_NAME = Names(EnergyOptions)
# Options on which sampled solutions depend: they are used again only with the same ones.
_SAMPLED = (
    *(_NAME.temperature, _NAME.top_p, _NAME.max_new_tokens, _NAME.batch_size, _NAME.seed, _NAME.best_of),
    *(_NAME.dtype, _NAME.attn_implementation, _NAME.max_examples),
)
_ENERGIES = ("energy", "shuffled", "relative")
# Signal, which is a rule too -> the number of a line that it is, and its sign: 1 where a high value is the better one.
SIGNALS = {
    **{name: (name, -1) for name in ("relative", "energy", "shuffled")},
    "likelihood_mean": ("log_likelihood_mean", 1),
    "likelihood_sum": ("log_likelihood", 1),
}


def energies(options: EnergyOptions, given: Sequence[str] = ()) -> AnalysisResult:
    """Score solutions: ``stepjepa analyze --energy``.

    Raises:
        ConfigError, DataError: what cannot be used; what an earlier command has written is unchanged then.
    """
    options.check()
    file = str(options.solutions or options.questions)
    name = slug(Path(file).stem if Path(file).exists() else file)
    path = Path(options.output_file or f"energies-{name}.jsonl").expanduser()
    files = [path, path.with_name(f"{path.stem}.metrics.json")]
    for one in files:
        if one.is_dir():
            raise ConfigError(f"--{_NAME.output_file} {path}: {one} is a folder")
        if one.exists() and Path(file).exists() and one.samefile(file):
            raise ConfigError(f"{one}: the scoring would write over its input; name another --{_NAME.output_file}")
        if one.exists() and not options.overwrite_output_dir:
            advice = f"give another --{_NAME.output_file}, or replace it with --{_NAME.overwrite_output_dir}"
            raise ConfigError(f"{one} is there already; {advice}")
    check_writable(path.parent, f"--{_NAME.output_file}")
    show_log(logging.WARNING)
    metric: Metric | None = None
    if options.best_of:
        (metric,) = make_metrics([str(options.metric)], options.metric_options)
        if metric.kind != "accuracy" and ":" not in metric.name:
            raise ConfigError(f"--{_NAME.metric} {metric.name}: --{_NAME.best_of} needs one that says right or wrong")
    kept = "sampled solutions are kept" if options.questions else "nothing is written yet"
    with metric or nullcontext(), Bar() as bar, ending("analyze", lambda: kept):
        for line in given:
            bar.say(f"note     {line}")
        model = models.load_scorer(options)
        system = questions.choose_system_prompt(options.system_prompt, False, model.record, model.place.name)
        bar.say(f"model    {model.place.name} ({model.description})")
        bar.say(f"system   {system.origin}")
        for line in models.energy_notes(model.record.settings):
            bar.say(f"note     {line}")
        source, limit = RowSource(file, options.dataset_split), options.max_examples
        if options.questions:
            files.append(_sample(options, model, source, system, metric, path, bar))
            source, limit = RowSource(files[-1]), None
        found = questions.read_solutions(source, system, model.method.columns, limit)
        with saying_where(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        lines, result = _score(options, model, found, metric, bar)
        replace_file(path, map(json_line, lines))
        replace_file(files[1], [json_bytes(result, indent=2), b"\n"])
    return AnalysisResult(result, tuple(files), (*energy_lines(result), *(f"{'written':<14} {one}" for one in files)))


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
    asked = questions.read_questions(source, system, method.columns, options.max_examples)
    drop_useless(asked, [metric] if metric else [], prompter)
    bar.say(f"data     {asked.source}: {len(asked.questions)} of {asked.rows_read} questions")
    for line in asked.skipped_lines():
        bar.say(f"         {line}")
    identity = {
        **{name: getattr(options, name) for name in _SAMPLED},
        **digests(model.place, prompter.tokenizer, asked.fingerprint()),
    }
    samples, about, partial = (path.with_name(f"{path.stem}.samples.{kind}") for kind in ("jsonl", "json", "partial"))
    paths = Paths((samples,), about, partial)
    output = Output(paths, identity, {}, options.overwrite_output_dir, [Path(str(options.questions))])
    limits = options.max_new_tokens, options.top_p, options.batch_size
    generator = LocalGenerator(model.model, prompter, *limits)
    task = Task(asked, [], generator, temperature=options.temperature, seed=options.seed, bar=bar)
    return sample_solutions(task, output, int(options.best_of or 0))


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
        verdicts = questions.right_answers(metric, found.solutions)
    encoded, report = models.encode_all(options, model, found)
    for text in report.steps.lines():
        bar.say(f"         {text}")
    lines = _lines(options, model, found, encoded, bar)
    steps = [step for line in lines for step in line["steps"]]
    relative = _values(steps, "relative")
    result: dict[str, Any] = {
        "solutions": len(lines),
        "without_energy": sum(line["energy"] is None for line in lines),
        "why_without": {**report.rows_skipped, **report.examples_without_pairs},
        "truncated": report.answers_truncated,
        "rows": {"read": found.rows_read, "skipped": dict(found.rows_skipped), "first_skipped": found.first_skipped},
        "pairs": len(_values(steps, "energy")),
        "nearer_than_shuffled": sum(value < 0 for value in relative) / len(relative) if relative else None,
        "means": {name: mean(_values(lines, name))._asdict() for name in (*_ENERGIES, "log_likelihood_mean")},
    }
    if metric is not None:
        for number, (line, (right, final)) in enumerate(zip(lines, verdicts, strict=True)):
            line |= {"sample": number % count + 1, "answer": final, "correct": right}
        result["best_of"] = {**best_of(lines, count), "questions_with_fewer": fewer, "metric": options.metric}
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
    bar: Bar,
) -> list[Line]:
    """The energies and likelihoods of every solution."""
    examples = [one.example for one in encoded if one is not None]
    bar.begin("energies", len(examples), 0)
    vocabulary, collator = models.collator_of(model)
    given = model.model, model.place.name, collator, examples, (model.layer,), vocabulary
    states, likelihoods = read_states(*given, options.batch_size, bar.step, model.layer)
    distance, keys = objective_of(model.method).distances, [one.question_key for one in found.solutions]
    views = torch.from_numpy(states[0, 0]), torch.from_numpy(states[1, 0])
    counts = [0 if one is None else len(one.sources) for one in encoded]
    groups_P, own, shuffled = np.repeat(np.unique(keys, return_inverse=True)[1], counts), np.zeros(0), np.zeros(0)
    if len(groups_P):
        own = distance(*views).double().numpy()
        shuffled = shuffled_energies(distance, *views, groups_P, options.shuffled_targets, options.seed)
    pairs = iter(zip(own.tolist(), [None if np.isnan(one) else one for one in shuffled.tolist()], strict=True))
    likelihood_of, lines = iter(likelihoods.tolist()), list[Line]()
    for solution, one in zip(found.solutions, encoded, strict=True):
        of_step = {} if one is None else {step: next(pairs) for step in one.sources}
        steps = []
        for number, text in enumerate(() if one is None else one.steps):
            energy, other = of_step.get(number, (None, None))
            relative = None if energy is None or other is None else energy - other
            steps.append({"step": number + 1, "text": text, "energy": energy, "shuffled": other, "relative": relative})
        likelihood = None if one is None else next(likelihood_of)
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
    distance: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    source_PD: torch.Tensor,
    target_PD: torch.Tensor,
    groups_P: np.ndarray,
    count: int,
    seed: int,
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


# Best of N: Q questions of N solutions each


def first_of_each(keys: Sequence[str], count: int) -> tuple[list[list[int]], int]:
    """Indices of the first `count` of each key; and how many keys have fewer, which are left out.

    Raises:
        DataError: no key has so many.
    """
    indices: dict[str, list[int]] = {}
    for index, key in enumerate(keys):
        indices.setdefault(key, []).append(index)
    enough = [group[:count] for group in indices.values() if len(group) >= count]
    if not enough:
        raise DataError(
            f"--{_NAME.best_of} {count}: no question has {count} solutions, the most is {max(map(len, indices.values()))}; "
            f"lower it, or let the model sample them with --{_NAME.questions} FILE"
        )
    return enough, len(indices) - len(enough)


def best_of(lines: Sequence[Line], count: int) -> dict[str, Any]:
    """Choose one of the `count` lines of each question by every rule: a signal, or the majority of answers.

    A line without a value comes after all that have one, and among equals the first is chosen. The area under the ROC curve
    says how well a signal tells right solutions from wrong ones of the same question; 0.5 is chance.

    Returns:
        ``questions``, ``samples``; ``rules``: rule -> ``value``, ``low``, ``high`` (95 %), ``against_random`` and
        ``against_majority`` alike; ``auroc``: signal -> the same, and the ``questions`` that have right and wrong solutions
        with their ``pairs``; ``mixed``: how many these are.
    """
    right_QN = np.array([line["correct"] for line in lines]).reshape(-1, count)
    chance_Q, every_Q = right_QN.mean(axis=1), np.arange(len(right_QN))
    mixed = np.flatnonzero((chance_Q > 0) & (chance_Q < 1)).tolist()
    votes = [
        _majority([line["answer"] for line in lines[start : start + count]]) for start in range(0, len(lines), count)
    ]
    picked: dict[str, Any] = {
        "first": right_QN[:, 0],
        "majority": right_QN[every_Q, votes],
        "oracle": right_QN.any(axis=1),
    }
    auroc = {}
    for signal, (name, sign) in SIGNALS.items():
        worth = [float("-inf") if line[name] is None else sign * line[name] for line in lines]
        worth_QN = np.array(worth).reshape(right_QN.shape)
        picked[signal] = right_QN[every_Q, worth_QN.argmax(axis=1)]
        sides = [(worth_QN[q][right_QN[q], None], worth_QN[q][~right_QN[q]]) for q in mixed]
        areas = [float(0.5 * ((good > bad).mean() + (good >= bad).mean())) for good, bad in sides]  # equal ones: a half
        value, low, high = mean(areas)
        ends = {"low": None if low is None else max(low, 0.0), "high": None if high is None else min(high, 1.0)}
        pairs = sum(len(good) * len(bad) for good, bad in sides)
        auroc[signal] = {"value": value, **ends, "questions": len(areas), "pairs": pairs}
    rules: dict[str, Any] = {"random": mean(chance_Q.tolist())._asdict()}
    for name in list(RULES)[1:]:
        less = mean((picked[name] - chance_Q).tolist())._asdict()
        rules[name] = {**share(int(picked[name].sum()), len(every_Q))._asdict(), "against_random": less}
        if name not in ("majority", "oracle"):
            counts = paired_counts(picked["majority"].tolist(), picked[name].tolist())
            rules[name]["against_majority"] = {**paired_difference(*counts)._asdict(), "p": mcnemar_p(*counts[1:3])}
    return {"questions": len(every_Q), "samples": count, "mixed": len(mixed), "rules": rules, "auroc": auroc}


def _majority(answers: Sequence[str | None]) -> int:
    """The index of the first of the most common answer; None does not vote."""
    groups: list[list[int]] = []
    for index, answer in enumerate(answers):
        same = next((group for group in groups if answers_match(answers[group[0]], answer)), None)
        if same is not None:
            same.append(index)
        elif answer is not None:
            groups.append([index])
    return max(groups, key=len)[0] if groups else 0


def _values(records: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [record[name] for record in records if record[name] is not None]
