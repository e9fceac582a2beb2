"""``stepjepa evaluate``: let a model answer the questions of a file and score the answers; look into what it said."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from stepjepa.config.parser import Alias, StrictParser
from stepjepa.errors import ConfigError
from stepjepa.evaluation.options import NLL, EvaluateOptions, listed_metrics
from stepjepa.utils.progress import Bar, ending
from stepjepa.utils.terminal import print_json, print_text

# Spellings of the published evaluate_step_jepa that are not field names already.
_PUBLISHED: dict[str, Alias] = {"model_path": "model_name"}
_OF_ANALYSIS = {"analyze", "show", "json", "metric"}
_GENERATING = ("max_new_tokens", "temperature", "top_p", "seed")


def run(argv: list[str]) -> int:
    """Evaluate or analyse. Exit status 0; 130 or 143 where a signal ends it."""
    parser = StrictParser(
        (EvaluateOptions,),
        aliases=_PUBLISHED,
        positional=("model_name", "test_file"),
        prog="stepjepa evaluate RUN TEST_FILE",
        description="Let a model answer the questions of a file, and score the answers. Interrupted, the same command goes "
        "on. With --analyze, look into the predictions of one evaluation, or compare those of two.",
        epilog="example: stepjepa evaluate runs/a test.jsonl --metric gsm8k; then stepjepa evaluate --analyze "
        "runs/a/evaluation-test/predictions.jsonl",
    )
    options: EvaluateOptions
    (options,) = parser.parse(argv)
    if options.analyze is not None:
        return analyze(options, parser.explicit)
    return evaluate(options, parser.explicit)


def evaluate(options: EvaluateOptions, explicit: Collection[str]) -> int:
    """Do what the options say; exit status."""
    if options.model_name and options.test_file and not options.metric:
        print_text(listed_metrics())
    options.check()
    if options.output_file is not None and Path(options.output_file).is_dir():
        raise ConfigError(f"--output_file {options.output_file}: is a folder; see --output_dir")
    from transformers.utils.logging import disable_progress_bar

    from stepjepa.evaluation.runner import run_evaluation

    disable_progress_bar()  # of loading
    with EvaluationBar() as bar, ending("evaluate", lambda: "what is done is kept"):
        for line in _without_effect(options, explicit):
            bar.say(f"note     {line}")
        outcome = run_evaluation(options, bar)
    if options.json:
        print_json(outcome.result)
        return 0
    lines = list(result_lines(outcome.result))
    if outcome.already:
        lines.insert(0, "complete already; --overwrite_output_dir evaluates anew")
    print_text(
        "\n".join([*lines, *(f"{'there' if outcome.already else 'written':<14} {path}" for path in outcome.files)])
    )
    return 0


def analyze(options: EvaluateOptions, explicit: Collection[str]) -> int:
    """Look into one file of predictions or two; exit status."""
    from stepjepa.evaluation import analyze as analysis
    from stepjepa.evaluation import analyze_words as words

    files = [Path(name) for name in options.analyze or ()]
    if not 1 <= len(files) <= 2:
        raise ConfigError(f"--analyze takes one file of predictions, or two to compare; got {len(files)}")
    if options.show < 0:
        raise ConfigError(f"show is {options.show}; it must be at least 0")
    if options.metric is not None and len(options.metric) > 1:
        raise ConfigError("--analyze goes by one --metric of those that the predictions hold")
    metric = options.metric[0] if options.metric else None
    record: dict[str, Any]
    if len(files) == 1:
        one = analysis.analyze(files[0], options.show, metric)
        lines, record = words.analysis_lines(one), words.analysis_record(one)
    else:
        two = analysis.compare(files[0], files[1], options.show, metric)
        lines, record = words.comparison_lines(two), words.comparison_record(two)
    if options.json:
        print_json(record)
        return 0
    notes = [f"note     --{name} has no effect with --analyze" for name in sorted(set(explicit) - _OF_ANALYSIS)]
    print_text("\n".join([*notes, *lines]))
    return 0


class EvaluationBar(Bar):
    """A bar for each part of the work."""

    def begin(self, what: str, total: int, done: int) -> None:
        """A bar for one part."""
        self.start(what, total, done)
        if not self.is_terminal:
            self.say(f"{what}: {total}{f', {done} of them done before' if done else ''}")

    def step(self, count: int) -> None:
        """Move it on."""
        self.advance(count)
        self.tell()


def _without_effect(options: EvaluateOptions, explicit: Collection[str]) -> Iterator[str]:
    if options.generates and options.temperature == 0:
        for name in ("top_p", "seed"):
            if name in explicit:
                yield f"--{name} has no effect without --temperature"
    for name in _GENERATING:
        if not options.generates and name in explicit:
            yield f"--{name} has no effect: --metric {NLL} generates nothing"
    if "max_length" in explicit and NLL not in (options.metric or ()):
        yield f"--max_length has no effect without --metric {NLL}"
    if "vllm_options" in explicit and options.backend != "vllm":
        yield "--vllm_options has no effect without --backend vllm"
    if "show" in explicit:
        yield "--show has no effect without --analyze"


def result_lines(result: dict[str, Any]) -> Iterator[str]:
    """The result of an evaluation in words."""
    for name, found in result["metrics"].items():
        yield f"{name:<14} {_metric(found)}"
    generation = result["generation"]
    if generation:
        stop = generation["did_not_stop"]
        refused = f"; {generation['refused']} prompts had no room" if generation["refused"] else ""
        if stop["n"]:
            yield f"{'did not stop':<14} {_share(stop)} ({stop['count']} of {stop['n']}){refused}"
            speed = generation["tokens_per_second"]
            yield (
                f"{'tokens':<14} {generation['mean_tokens']:.1f} a response; {generation['tokens']} in "
                f"{generation['seconds']:.1f} s{f', {speed:.0f} a second' if speed else ''}"
            )
        else:
            yield f"{'refused':<14} all {generation['refused']} prompts: the model has no room for them"
    skipped = sum(result["rows"]["skipped"].values())
    if skipped:
        yield f"{'skipped':<14} {skipped} of {result['rows']['read']} rows, which count nowhere (see metrics.json)"


def _metric(found: dict[str, Any]) -> str:
    if found["kind"] == "accuracy":
        return f"{_share(found)} ({found['correct']} of {found['n']})"
    if found["kind"] == "score" and found["value"] is not None:
        corpus = f"; of all texts together {found['corpus']:.4f}" if "corpus" in found else ""
        return f"{found['value']:.4f}{_ends(found)}{corpus}"
    if found["value"] is None or not math.isfinite(found["value"]):
        return f"no finite number ({found['n']} rows)"
    cut = f"; {found['answers_truncated']} answers cut at max_length" if found["answers_truncated"] else ""
    skipped = sum(found["skipped"].values())
    cut += f"; {skipped} rows left out" if skipped else ""
    return (
        f"{found['value']:.4f} nats a token (perplexity {found['perplexity']:.4g}, {found['tokens']} tokens); "
        f"mean of {found['n']} rows {found['row_mean']:.4f}{_ends(found)}{cut}"
    )


def _share(found: dict[str, Any]) -> str:
    return f"{100 * found['value']:.1f} %, 95 % interval {100 * found['low']:.1f} to {100 * found['high']:.1f}"


def _ends(found: dict[str, Any]) -> str:
    return "" if found["low"] is None else f", 95 % interval {found['low']:.4f} to {found['high']:.4f}"
