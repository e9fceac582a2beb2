"""``stepjepa report``: one HTML page of runs, of a study or of a demo."""

from __future__ import annotations

from stepjepa.api import report
from stepjepa.config.parser import StrictParser, positional_argument
from stepjepa.report import ReportOptions
from stepjepa.utils.terminal import print_text


def run(argv: list[str]) -> int:
    """Write the page. Exit status 0."""
    parser = StrictParser(
        (ReportOptions,),
        prog="stepjepa report RUN_OR_STUDY [RUN ...]",
        description="Write one HTML page that needs no network: what was run, the curves of both losses, signs of collapse, "
        "accuracy with intervals, predictions side by side, study tables, geometry figures, cost. Several runs are compared "
        "side by side.",
        epilog="example: stepjepa report runs/regular runs/step_jepa --output_file report.html",
    )
    print_text(str(report(**parser.values(with_folders(parser, argv)))))
    return 0


def with_folders(parser: StrictParser, argv: list[str]) -> list[str]:
    """`argv` with its free words (no flags, and no flag's values) as the folders."""
    free = list[str]()
    while (rest := positional_argument(parser, argv, "folders")) != argv:
        *argv, word = rest
        free.append(word.removeprefix("--folders="))
    return ["--folders", *free, *argv] if free else argv
