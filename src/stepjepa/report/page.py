"""The page: one file with its style, its script, its pictures and its data in it, that needs no network.

The template escapes every text (Jinja, autoescape). Answers of models reach the page as JSON inside a script element of a
type that no browser runs, and from there the document as text. The page's Content-Security-Policy forbids all connections,
and every script and style but its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from stepjepa.analysis.summary import ADVICE
from stepjepa.config.option import check_fields, option
from stepjepa.errors import ConfigError
from stepjepa.inspect.html import base_style, element_hash, script_json, write_page
from stepjepa.report import sections, studies
from stepjepa.report.charts import FRAME, history_points, make_charts, short
from stepjepa.report.reading import Found, Run, Study, read_folders, table
from stepjepa.version import __version__

_PARTS = files("stepjepa.report") / "page"
_POLICY = (
    "default-src 'none'; img-src data:; script-src '{script}'; style-src '{style}'; base-uri 'none'; form-action 'none'"
)
_LARGE = 3_000_000  # bytes of a page


@dataclass
class ReportOptions:
    """What is reported, and where to."""

    folders: list[str] | None = option(
        None,
        "Folders of runs, of one study, or of a demo; usually written without --folders, in front of the rest.",
        "report",
    )
    geometry: list[str] | None = option(
        None, "Folders of stepjepa analyze, besides those inside the runs' folders.", "report"
    )
    output_file: str | None = option(None, "The page. Default: report.html in the first folder.", "report")
    overwrite: bool = option(False, "Replace an existing file.", "report", aliases=("overwrite_output_dir",))
    max_predictions: int = option(
        200,
        "Questions whose answers are put into the page, of each evaluation; counts are of all.",
        "report",
        at_least=0,
    )


@dataclass(frozen=True)
class ReportResult:
    """A page that was written; printed, what was left out and where the page is.

    Attributes:
        path: the page.
        bytes: its size.
        problems: a sentence for each file that could not be used.
    """

    path: Path
    bytes: int
    problems: list[str]

    def __str__(self) -> str:
        lines = [f"left out {problem}" for problem in self.problems]
        if self.bytes > _LARGE:
            lines.append(f"the page is larger than {_LARGE / 1e6:g} MB; a smaller --max_predictions makes it smaller")
        return "\n".join([*lines, f"written: {self.path} ({self.bytes / 1e6:.2f} MB)"])


def report(options: ReportOptions) -> ReportResult:
    """Write one page of runs, of a study or of a demo.

    Raises:
        ConfigError: a folder holds nothing to report, or the page cannot be written.
    """
    check_fields(options)
    if not options.folders:
        raise ConfigError("no folder given; write: stepjepa report RUN_OR_STUDY")
    folders = [Path(name).expanduser() for name in options.folders]
    output = Path(options.output_file).expanduser() if options.output_file else folders[0] / "report.html"
    found = read_folders(folders, [Path(name).expanduser() for name in options.geometry or ()])
    if output.is_dir():
        raise ConfigError(f"--output_file {output}: is a folder; give a file")
    if output.exists() and not options.overwrite:
        raise ConfigError(f"{output} exists; replace it with --overwrite, or give another --output_file")
    page = report_page(found, options.max_predictions)
    write_page(page, output)
    return ReportResult(output, len(page), found.reader.problems)


def report_page(found: Found, max_predictions: int = 200) -> str:
    """The page, in ASCII.

    Args:
        max_predictions: questions whose answers are put into the page, of each evaluation; counts are of all.
    """
    album = cache(lambda: studies.Album(found.reader))
    context = _study(found.study, album()) if found.study else _runs(found.runs)
    losses = make_charts(context["curves"], context["loss_quantities"])
    sign_charts = make_charts(context["curves"], sections.SIGNS)
    predictions = sections.prediction_sets(found.runs, max_predictions, found.reader)
    charts = {chart.key: chart.readout() for chart in [*losses, *sign_charts]}
    style, script = base_style() + _part("report.css"), _part("report.js")
    page = _template().render(
        **context,
        losses=losses,
        sign_charts=sign_charts,
        geometry=[studies.geometry_record(folder, album()) for folder in found.geometry],
        has_predictions=bool(predictions),
        advice=ADVICE,
        frame=FRAME,
        short=short,
        version=__version__,
        problems=found.reader.problems,
        policy=_POLICY.format(style=element_hash(style), script=element_hash(script)),
        style=Markup(style),
        script=Markup(script),
        data=Markup(script_json({"frame": FRAME, "charts": charts, "predictions": predictions})),
    )
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _runs(runs: list[Run]) -> dict[str, Any]:
    logged = [(run.label, sections.logged_signs(run)) for run in runs]
    return {
        "study": None,
        "title": " and ".join(run.label for run in runs) if len(runs) < 4 else f"{len(runs)} runs",
        "folders": [str(run.path) for run in runs],
        "heads": [run.label for run in runs],
        "settings": sections.settings_table([run.settings for run in runs]),
        "versions": sections.versions([run.record for run in runs]),
        "data_reports": [(run.label, sections.data_lines(run.data)) for run in runs],
        "unfinished": [run.label for run in runs if run.unfinished and run.history],
        "curves": [(run.label, partial(history_points, run.history)) for run in runs],
        "curves_note": "",
        "loss_quantities": sections.loss_quantities(runs),
        "without_log": [run.label for run in runs if not run.history],
        "signs": [(label, one) for label, one in logged if one],
        "no_signs": [label for label, one in logged if one is None],
        "demo": [[run.label, *sections.demo_cells(run)] for run in runs if run.demo],
        "accuracy": sections.accuracy_rows(runs),
        "paired": list(sections.paired_rows(runs)),
        "not_evaluated": [run.label for run in runs if not run.evaluations],
        "unfinished_evaluations": [
            f"{run.label}: {name}" for run in runs for name, one in run.evaluations.items() if not one.result
        ],
        "cost": list(sections.cost_rows(runs)),
    }


def _study(study: Study, album: studies.Album) -> dict[str, Any]:
    arms, (curves, note) = studies.arm_settings(study), studies.curves(study)
    parts = list(studies.parts_of(study.tables))
    first = next((run for run in study.runs if run.data), None)
    pictures = [album.picture(path, path.stem) for path in study.figures]
    return {
        "study": {"parts": parts, "counts": studies.run_states(study), "cost": studies.cost(study)},
        "figures": [one for one in pictures if one],
        "title": parts[0][1] if parts and parts[0][0] == "heading" else study.path.resolve().name,
        "folders": [str(study.path)],
        "heads": list(arms),
        "settings": sections.settings_table(list(arms.values())),
        "versions": sections.versions([table(study.state, "identity", "code")]),
        "data_reports": [(f"{first.label} (one of the runs)", sections.data_lines(first.data))] if first else [],
        "unfinished": [],
        "curves": curves,
        "curves_note": note,
        "loss_quantities": sections.loss_quantities(study.runs),
        "without_log": [],
        "signs": list(studies.signs(study)),
        "no_signs": [],
        "demo": [],
    }


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(_part),
    )
    return environment.get_template("report.html")


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="ascii")
