"""What ``stepjepa score`` does: read or sample solutions, read their energies and likelihoods, choose, write all that."""

from __future__ import annotations

import hashlib
import logging
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from stepjepa.analysis.energies import EncodedSolution, encode_solutions
from stepjepa.cli.score import TAKEN
from stepjepa.cli.score_model import Scorer, load_scorer, read, scorer_notes
from stepjepa.cli.score_records import chosen, result_lines, solution_records, summary
from stepjepa.data.chat_template import template_of
from stepjepa.data.prompts import Prompter
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import LISTED, TOTAL_COLUMN
from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.best_of import first_of_each
from stepjepa.evaluation.metrics.base import Metric
from stepjepa.evaluation.metrics.registry import make_metrics
from stepjepa.evaluation.models import fingerprint
from stepjepa.evaluation.questions import SystemPrompt, choose_system_prompt, drop_unaskable, read_questions
from stepjepa.evaluation.run import Task
from stepjepa.evaluation.scoring import drop_unscorable
from stepjepa.evaluation.solutions import SolutionSet, read_solutions, right_answers, sample_solutions
from stepjepa.generation.local import LocalGenerator
from stepjepa.generation.store import Output, Paths, json_line, saying_where
from stepjepa.generation.store import replace as replace_file
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.load import max_positions
from stepjepa.training.encoding import make_renderer, pair_columns, settings_for
from stepjepa.training.options import JEPAOptions
from stepjepa.utils.files import check_writable, json_bytes
from stepjepa.utils.progress import Bar, ending
from stepjepa.utils.terminal import print_json, print_text, show_log
from stepjepa.version import __version__

_SAMPLED = "temperature top_p max_new_tokens batch_size seed best_of dtype attn_implementation max_examples".split()


@dataclass(frozen=True)
class Outputs:
    """The files of a scoring."""

    energies: Path
    metrics: Path
    samples: Paths

    @classmethod
    def of(cls, options: Any) -> Outputs:
        """Their names."""
        path = Path(options.output_file or f"energies-{_stem(options.file)}.jsonl").expanduser()
        names = (f"{path.stem}.samples.{kind}" for kind in ("jsonl", "none", "json", "partial"))
        samples, none, record, partial = (path.with_name(name) for name in names)
        return cls(path, path.with_name(f"{path.stem}.metrics.json"), Paths((samples, none), record, partial))

    def check(self, options: Any) -> None:
        """Refuse what cannot be written, or may not be written over.

        Raises:
            ConfigError: such a file.
        """
        for path in (self.energies, self.metrics):
            if path.is_dir():
                raise ConfigError(f"--output_file {self.energies}: {path} is a folder")
            if path.exists() and Path(options.file).exists() and path.samefile(options.file):
                raise ConfigError(f"{path}: the scoring would write over its input; name another --output_file")
            if path.exists() and not options.overwrite_output_dir:
                raise ConfigError(
                    f"{path} is there already; give another --output_file, or replace it with --overwrite_output_dir"
                )
        check_writable(self.energies.parent, "--output_file")


def work(options: Any, notes: Sequence[str]) -> int:
    """Do what the options say; exit status 0.

    Raises:
        StepJepaError: what cannot be used; what an earlier scoring has left still stands then.
    """
    outputs = Outputs.of(options)
    outputs.check(options)
    transformers.utils.logging.disable_progress_bar()  # of loading
    show_log(logging.WARNING)
    metric = _metric(options)
    kept = "sampled solutions are kept" if options.questions else "nothing is written yet"
    try:
        with Bar() as bar, ending("score", lambda: kept):
            for line in notes:
                bar.say(f"note     {line}")
            scorer = load_scorer(options)
            system = choose_system_prompt(options.system_prompt, False, scorer.record, scorer.place.name)
            bar.say(f"model    {scorer.place.name} ({scorer.words})")
            bar.say(f"system   {system.origin}")
            for line in scorer_notes(scorer):
                bar.say(f"note     {line}")
            solutions = sampled(options, scorer, system, metric, outputs, bar) if options.questions else None
            if solutions is None:
                rows = RowSource(options.solutions, options.dataset_split)
                solutions = read_solutions(rows, system, pair_columns(scorer.method), options.max_examples)
            with saying_where(outputs.energies):
                outputs.energies.parent.mkdir(parents=True, exist_ok=True)
            lines, result = scored(options, scorer, solutions, metric, bar)
            replace_file(outputs.energies, map(json_line, lines))
            replace_file(outputs.metrics, [json_bytes(result, indent=2), b"\n"])
    finally:
        if metric is not None:
            metric.close()
    if options.json:
        print_json(result)
        return 0
    files = [outputs.energies, outputs.metrics, *([outputs.samples.results[0]] if options.questions else [])]
    print_text("\n".join([*result_lines(result), *(f"{'written':<14} {path}" for path in files)]))
    return 0


def sampled(
    options: Any, scorer: Scorer, system: SystemPrompt, metric: Metric | None, outputs: Outputs, bar: Bar
) -> SolutionSet:
    """Solutions that the model has sampled, in a file beside the output.

    Raises:
        StepJepaError: questions that cannot be asked; what is sampled by then is kept.
    """
    method, tokenizer = scorer.method, scorer.tokenizer
    prompter = Prompter(tokenizer, method.chat_template, method.plain, method.chat_template_kwargs)
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
        "model": fingerprint(scorer.place),
        "data": questions.fingerprint(),
    }
    output = Output(outputs.samples, identity, {}, options.overwrite_output_dir, [Path(options.questions)])
    limits = options.max_new_tokens, options.top_p, options.batch_size
    task = Task(
        questions,
        [],
        LocalGenerator(scorer.model, prompter, *limits, overwrite="--overwrite_output_dir"),
        temperature=options.temperature,
        seed=options.seed,
        bar=bar,
    )
    path = sample_solutions(task, output, int(options.best_of))
    return read_solutions(RowSource(path), system, pair_columns(method))


def scored(
    options: Any, scorer: Scorer, found: SolutionSet, metric: Metric | None, bar: Bar
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A record for each solution, and what all of them come to."""
    bar.say(f"scored   {found.source}: {len(found.solutions)} of {found.rows_read} rows")
    for words in found.skipped_lines():
        bar.say(f"         {words}")
    short, verdicts = 0, list[tuple[bool, str | None]]()
    if metric is not None:  # before the model works
        groups, short = first_of_each([one.question_key for one in found.solutions], options.best_of)
        found.solutions = [found.solutions[place] for group in groups for place in group]
        verdicts = right_answers(metric, found.solutions)
    # The chats are made already, whatever the columns were.
    method = replace(scorer.method, source_column=None, target_column=None, choice_column=None)
    encoded, report = encoded_solutions(scorer, method, found)
    for words in report.steps.lines():
        bar.say(f"         {words}")
    if all(one is None for one in encoded):
        first = next(iter(report.first_skipped.values()))
        raise DataError(f"none of {len(encoded)} solutions can be read by this model; first: {first}")
    readings = read(options, scorer, [one for one in encoded if one is not None], bar)
    keys = {key: number for number, key in enumerate(dict.fromkeys(one.question_key for one in found.solutions))}
    pairs = [0 if one is None else len(one.sources) for one in encoded]
    groups_P = np.repeat([keys[one.question_key] for one in found.solutions], pairs)
    distant = options.shuffled_targets, options.seed
    numbers = solution_records(method, encoded, readings, groups_P, *distant)
    lines = [
        {"index": one.index, "question": one.question, **more}
        for one, more in zip(found.solutions, numbers, strict=True)
    ]
    result = summary(lines, found, report)
    if metric is not None:
        for number, (line, (right, final)) in enumerate(zip(lines, verdicts, strict=True)):
            line |= {"sample": number % options.best_of + 1, "answer": final, "correct": right}
        result["best_of"] = {**chosen(lines, options.best_of), "questions_with_fewer": short, "metric": options.metric}
    return lines, {**result, **about(options, method)}


def encoded_solutions(
    scorer: Scorer, method: JEPAOptions, found: SolutionSet
) -> tuple[list[EncodedSolution | None], DataReport]:
    """The solutions as training would read them.

    Raises:
        ConfigError: there is no template, or there are no steps in columns.
    """
    if method.step_splitter == LISTED and found.generated:
        raise ConfigError("generated solutions come without a column of steps; add --step_splitter separator")
    # What a row of predictions says about steps is about another answer.
    names = () if found.generated else (method.steps_column, TOTAL_COLUMN)
    rows = [
        {"messages": one.chat, **{name: one.row[name] for name in names if name in one.row}} for one in found.solutions
    ]
    source = RowSource(rows)
    source.name = found.source
    renderer = make_renderer(scorer.tokenizer, method)
    if renderer is None:
        raise ConfigError("the model's tokenizer has no chat template; give --chat_template FILE, or --plain")
    settings = settings_for(source, method, max_positions(causal_lm(scorer.model)), scorer.splitter)
    places = [one.place for one in found.solutions]
    return encode_solutions(list(zip(places, rows, strict=True)), scorer.tokenizer, renderer, settings)


def about(options: Any, method: JEPAOptions) -> dict[str, Any]:
    """What the numbers were made with."""
    versions = {"stepjepa": __version__, "torch": torch.__version__, "transformers": transformers.__version__}
    return {
        "method": {name: getattr(method, name) for name in TAKEN},
        "settings": asdict(options),
        "versions": {**versions, "python": platform.python_version()},
    }


def _metric(options: Any) -> Metric | None:
    if not options.best_of:
        return None
    (metric,) = make_metrics([options.metric], options.metric_options) or (None,)
    if metric is None or (metric.kind != "accuracy" and ":" not in metric.name):
        raise ConfigError(f"--metric {options.metric}: --best_of needs one that says right or wrong")
    return metric


def _stem(name: str) -> str:
    stem = Path(name).stem if Path(name).exists() else name
    return "".join(sign if sign.isalnum() or sign in "._-" else "-" for sign in stem).strip("-.") or "data"
