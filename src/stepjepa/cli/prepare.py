"""``stepjepa prepare``: turn raw answers into chat rows with steps."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from stepjepa.cli.check import needed_file
from stepjepa.config.option import option
from stepjepa.config.parser import StrictParser
from stepjepa.data.answers import answers_match, final_answer
from stepjepa.data.prepare import prepare
from stepjepa.data.prepare_options import AnswerRules, PrepareOptions
from stepjepa.data.prepare_report import PrepareReport
from stepjepa.utils.terminal import print_text


@dataclass
class SourceOptions:
    """What ``stepjepa prepare`` reads."""

    file: str | None = option(
        None, "The raw rows: a file, or a Hub data set's name; usually written without --file.", "input"
    )


def run(argv: list[str]) -> int:
    """Prepare a file; exit status 0 where rows were written."""
    parser = StrictParser(
        (SourceOptions, PrepareOptions),
        positional=("file",),
        prog="stepjepa prepare INPUT",
        description="Turn raw questions and answers (GSM8K, a teacher's responses, lines of text, any columns) into chat "
        "rows with steps, which stepjepa train reads.",
        epilog="example: stepjepa prepare gsm8k_train.jsonl --output_file train.jsonl --valid_ratio 0.05",
    )
    options: PrepareOptions
    source, options = parser.parse(argv)
    report = prepare(needed_file(source.file, "prepare"), options, AnswerRules(final_answer, answers_match))
    print_text("\n".join([*report.lines(), *next_command(report, options)]))
    return 0


def next_command(report: PrepareReport, options: PrepareOptions) -> list[str]:
    """The command that trains on what was written; nothing where no row is left to train on."""
    train = [file for file, rows in report.files.items() if rows]
    evaluation = []
    if options.valid_ratio and train and train[-1] == list(report.files)[-1]:
        evaluation = ["--eval_file", train.pop()]
    if not train:
        return []
    objective = "--step_jepa" if max(report.step_counts) > 1 else "--objective=llm_jepa"
    output = f"runs/{Path(str(options.output_file)).stem}"
    words = ["stepjepa", "train", "--train_file", *train, *evaluation, "--model_name", "mini", objective]
    return [f"Next: {shlex.join([*words, '--output_dir', output])}"]
