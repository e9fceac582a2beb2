"""``stepjepa prepare``: turn raw answers into chat rows with steps."""

from __future__ import annotations

from dataclasses import dataclass

from stepjepa.cli.check import file_argument, needed_file
from stepjepa.cli.parser import StrictParser
from stepjepa.data.prepare import prepare
from stepjepa.data.prepare_options import AnswerRules, PrepareOptions
from stepjepa.evaluation.answers import answers_match, final_answer
from stepjepa.training.options import option
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
        prog="stepjepa prepare INPUT",
        description="Turn raw questions and answers (GSM8K, a teacher's responses, lines of text, any columns) into chat "
        "rows with steps, which stepjepa train reads.",
        epilog="example: stepjepa prepare gsm8k_train.jsonl --output_file train.jsonl --valid_ratio 0.05",
    )
    options: PrepareOptions
    source, options = parser.parse(file_argument(parser, argv))
    report = prepare(needed_file(source.file, "prepare"), options, AnswerRules(final_answer, answers_match))
    print_text("\n".join(report.lines()))
    return 0
