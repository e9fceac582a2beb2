"""stepjepa report RUN_OR_STUDY [RUN ...]

Write one HTML page that needs no network: what was run, the curves of both losses, signs of collapse, accuracy with
intervals, predictions side by side, study tables, geometry figures, cost. Several runs are compared side by side.

example: stepjepa report runs/regular runs/step_jepa --output_file report.html
"""

from __future__ import annotations

from stepjepa.api import report
from stepjepa.config.parser import StrictParser
from stepjepa.report.run import ReportOptions
from stepjepa.utils.terminal import print_text


def run(argv: list[str]) -> int:
    """Write the page. Exit status 0."""
    print_text(str(report(**StrictParser((ReportOptions,), __doc__, positional=("folders",)).values(argv))))
    return 0
