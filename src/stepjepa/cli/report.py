"""``stepjepa report``: one HTML page of runs, of a study or of a demo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepjepa.config.option import check_at_least, option
from stepjepa.config.parser import StrictParser
from stepjepa.errors import ConfigError
from stepjepa.utils.terminal import print_text

_GROUP = "report"
LARGE = 3_000_000  # bytes of a page
SWITCH, MANY = -1, -2
# How many values a flag takes; one where it is not told here.
_VALUES = {"__folders": MANY, "__geometry": MANY, "__overwrite": SWITCH, "__no_overwrite": 0, "__help": 0}


@dataclass
class ReportOptions:
    """What is reported, and where to."""

    folders: list[str] | None = option(
        None,
        "Folders of runs, of one study, or of a demo; usually written without --folders, in front of the rest.",
        _GROUP,
    )
    geometry: list[str] | None = option(
        None, "Folders of stepjepa analyze, beside those that lie in the runs' folders.", _GROUP
    )
    output_file: str | None = option(None, "The page. Default: report.html in the first folder.", _GROUP)
    overwrite: bool = option(False, "Replace an existing file.", _GROUP, aliases=("overwrite_output_dir",))
    max_predictions: int = option(
        200, "Questions whose answers are put into the page, of each evaluation; counts are of all.", _GROUP
    )


def run(argv: list[str]) -> int:
    """Write the page. Exit status 0."""
    parser = StrictParser(
        (ReportOptions,),
        prog="stepjepa report RUN_OR_STUDY [RUN ...]",
        description="One HTML page that needs no network: what was run, the curves of both losses, collapse signs, accuracy "
        "with intervals, predictions side by side, study tables, geometry figures, cost. What is missing is said, with the "
        "command that makes it. Several runs stand side by side.",
        epilog="example: stepjepa report runs/regular runs/step_jepa --output_file report.html",
    )
    options: ReportOptions
    (options,) = parser.parse(with_folders(argv))
    check_at_least(options, {"max_predictions": 0})
    if not options.folders:
        raise ConfigError("no folder given; write: stepjepa report RUN_OR_STUDY")
    from stepjepa.inspect.html import write_page
    from stepjepa.report.html import report_page
    from stepjepa.report.reading import read_folders

    folders = [Path(name).expanduser() for name in options.folders]
    output = Path(options.output_file).expanduser() if options.output_file else folders[0] / "report.html"
    found = read_folders(folders, [Path(name).expanduser() for name in options.geometry or ()])
    refuse_existing(output, options)
    page = report_page(found, options.max_predictions)
    write_page(page, output)
    lines = [f"left out {problem}" for problem in found.reader.problems]
    if len(page) > LARGE:
        lines.append(f"the page is larger than {LARGE / 1e6:g} MB; a smaller --max_predictions makes it smaller")
    print_text("\n".join([*lines, f"written: {output} ({len(page) / 1e6:.2f} MB)"]))
    return 0


def with_folders(argv: list[str]) -> list[str]:
    """`argv` with its free words (no flags, and no flag's values) as the folders."""
    free, kept = list[str](), list[str]()
    room = 0  # how many more words the flag before takes
    for word in argv:
        if word.startswith("--"):
            room = 0 if "=" in word else _VALUES.get(word.replace("-", "_"), 1)
        elif room and not (room == SWITCH and word.lower() not in ("true", "false")):
            room = 0 if room != MANY else MANY
        else:
            free.append(word)
            continue
        kept.append(word)
    return ["--folders", *free, *kept] if free else kept


def refuse_existing(output: Path, options: ReportOptions) -> None:
    """Refuse to write over a file without being told to, and over anything but a page.

    Raises:
        ConfigError: it is there, or cannot be a page's.
    """
    if output.is_dir():
        raise ConfigError(f"--output_file {output}: is a folder; give a file")
    if output.exists() and not options.overwrite:
        raise ConfigError(f"{output} exists; replace it with --overwrite, or give another --output_file")
