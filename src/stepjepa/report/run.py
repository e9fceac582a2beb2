"""``stepjepa report``: from folders to a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepjepa.config.option import Names, check_fields, option
from stepjepa.config.parser import build
from stepjepa.config.spellings import by_our_names
from stepjepa.errors import ConfigError
from stepjepa.inspect.html import write_page
from stepjepa.report.reading import read_folders
from stepjepa.report.render import report_page

_LARGE = 3_000_000  # bytes of a page


@dataclass
class ReportOptions:
    """What is reported, and where to."""

    folders: list[str] | None = option(
        None, "Folders of runs, or of one study; usually written without --folders, in front of the rest.", "report"
    )
    output_file: str | None = option(None, "The page. Default: report.html in the first folder.", "report")
    overwrite: bool = option(False, "Replace an existing file.", "report", aliases=("overwrite_output_dir",))
    max_predictions: int = option(
        200,
        "Questions whose answers are put into the page, of each evaluation; counts are of all.",
        "report",
        at_least=0,
    )


_NAME = Names(ReportOptions)


@dataclass(frozen=True)
class ReportResult:
    """A page that was written; printed, what was left out and where the page is.

    Attributes:
        path: the page.
        bytes: its size.
        answer: its first paragraphs: what may be concluded.
        problems: a sentence for each file that could not be used.
        stale: a sentence for each evaluation that is not of the present model.
    """

    path: Path
    bytes: int
    answer: list[str]
    problems: list[str]
    stale: list[str]

    def __str__(self) -> str:
        lines = [*(f"left out {problem}" for problem in self.problems), *(f"stale    {one}" for one in self.stale)]
        if self.bytes > _LARGE:
            remedy = f"fewer folders, or a smaller --{_NAME.max_predictions}, make it smaller"
            lines.append(f"the page is larger than {_LARGE / 1e6:g} MB; {remedy}")
        return "\n".join([*lines, f"written: {self.path} ({self.bytes / 1e6:.2f} MB)"])


def report(**options: Any) -> ReportResult:
    """Write one HTML page of runs or of a study: ``stepjepa report``.

    Args:
        options: those of ``stepjepa report`` by name, such as ``folders=["runs/a", "runs/b"]``.

    Raises:
        ConfigError: a folder holds nothing to report, or the page cannot be written.
    """
    (asked,) = build((ReportOptions,), by_our_names(options, ReportOptions))
    check_fields(asked)
    if not asked.folders:
        raise ConfigError("no folder given; write: stepjepa report RUN_OR_STUDY")
    folders = [Path(name).expanduser() for name in asked.folders]
    output = Path(asked.output_file).expanduser() if asked.output_file else folders[0] / "report.html"
    found = read_folders(folders)
    if output.is_dir():
        raise ConfigError(f"{output}: is a folder; give a file")
    if output.exists() and not asked.overwrite:
        remedy = f"replace it with --{_NAME.overwrite}, or give another --{_NAME.output_file}"
        raise ConfigError(f"{output} exists; {remedy}")
    page = report_page(found, asked.max_predictions)
    write_page(page.html, output)
    return ReportResult(output, len(page.html), page.answer, found.reader.problems, found.reader.stale)
