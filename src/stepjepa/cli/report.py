"""stepjepa report RUN_OR_STUDY [RUN ...]

Write one HTML page that needs no network: accuracies with paired differences, the curves of both losses, signs of
collapse, answers side by side, the settings that differ, the tables of a study. Several runs are compared side by side.

example: stepjepa report runs/regular runs/step_jepa --output_file report.html
"""

from __future__ import annotations

from stepjepa.api import report
from stepjepa.config.parser import StrictParser
from stepjepa.config.spellings import published
from stepjepa.report.run import ReportOptions
from stepjepa.utils.terminal import print_text


def run(argv: list[str]) -> int:
    """Write the page. Exit status 0."""
    parser = StrictParser((ReportOptions,), __doc__, aliases=published(ReportOptions), positional=("folders",))
    print_text(str(report(**parser.values(argv))))
    return 0
