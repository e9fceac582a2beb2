"""``stepjepa report``: a single HTML file with its style, script and data, which needs no network.

Jinja escapes all text. The answers of models are JSON in a script element of a type that no browser runs, and the page's
script inserts them as text. The Content-Security-Policy forbids all connections, and all scripts and styles except
the page's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jinja2
from markupsafe import Markup

from stepjepa.config.option import Names, check_fields, option, options_of
from stepjepa.config.spellings import checked_options
from stepjepa.errors import ConfigError
from stepjepa.inspect.figure import series_rules
from stepjepa.inspect.html import base_style, page_part, page_policy, script_json, write_page
from stepjepa.modeling.card import collapse_words, last_numbers, logged_collapse
from stepjepa.report.charts import FRAME, make_charts
from stepjepa.report.comparison import (
    accuracy_rows,
    affects_numbers,
    control_of,
    paired_rows,
    prediction_sets,
)
from stepjepa.report.reading import Reader, ReportedRun, ReportedStudy, read_folders
from stepjepa.training.options import JEPAOptions, RunOptions, TrainerOptions
from stepjepa.utils.files import Record
from stepjepa.utils.text import clock, scaled, written
from stepjepa.version import __version__

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stepjepa.keywords import ReportKeywords

_VERSIONS = (
    "stepjepa",
    "torch",
    "transformers",
    "peft",
    "python",
    "source",
    "processes",
    "device",
    "git_commit",
)
# These differ between any two runs, so the page does not mark them as differences.
_OWN = ("date", "command")


@dataclass
class ReportOptions:
    """Options of ``stepjepa report``."""

    folders: list[str] | None = option(
        None,
        "Folders of runs, or of one study; usually written without --folders, before the other options.",
        "report",
    )
    output_file: str | None = option(
        None, "File to write the page to. Default: report.html in the first folder.", "report"
    )
    overwrite: bool = option(
        False, "Replace an existing file.", "report", aliases=("overwrite_output_dir",)
    )
    max_predictions: int = option(
        200,
        "Number of questions per evaluation whose answers the page shows; its counts cover all questions.",
        "report",
        at_least=0,
    )


_NAME = Names(ReportOptions, RunOptions, JEPAOptions, TrainerOptions)
# Settings that identify a run in the headline.
_HEADLINE = (_NAME.objective, _NAME.seed, _NAME.train_file)


@dataclass(frozen=True)
class ReportResult:
    """The written page; its `str` lists the files that were left out, the stale evaluations, and the path.

    Attributes:
        path: the page.
        bytes: its size.
        answer: the first paragraphs of the page, which state the conclusion.
        problems: a sentence for each file that could not be used.
        stale: a sentence for each evaluation of a model other than the current one.
    """

    path: Path
    bytes: int
    answer: list[str]
    problems: list[str]
    stale: list[str]

    def __str__(self) -> str:
        lines = [
            *(f"left out {problem}" for problem in self.problems),
            *(f"stale    {sentence}" for sentence in self.stale),
        ]
        return "\n".join([*lines, f"written: {self.path} ({self.bytes / 1e6:.2f} MB)"])


def report(**options: Unpack[ReportKeywords]) -> ReportResult:
    """Write one HTML page about runs or a study, as ``stepjepa report`` does.

    Args:
        options: the options of ``stepjepa report`` by name.

    Raises:
        ConfigError: a folder contains neither a run nor a study, or the page cannot be written.

    Examples:
        >>> report(folders=["runs/regular", "runs/step"], output_file="report.html").answer
    """
    asked = checked_options(ReportOptions, options)
    check_fields(asked)
    if not asked.folders:
        raise ConfigError("no folder given; write: stepjepa report RUN_OR_STUDY")
    folders = [Path(name).expanduser() for name in asked.folders]
    output = (
        Path(asked.output_file).expanduser() if asked.output_file else folders[0] / "report.html"
    )
    if output.exists() and not asked.overwrite:
        remedy = f"replace it with --{_NAME.overwrite}, or give another --{_NAME.output_file}"
        raise ConfigError(f"{output} exists; {remedy}")
    reader = Reader()
    # The page shows the content of the files as it is, so a file of another form may fail anywhere in it.
    try:
        page, answer = report_page(folders, reader, asked.max_predictions)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{asked.folders[0]}: a JSON file of these folders has another form than stepjepa writes, or the report itself "
            f"fails ({type(error).__name__}); set STEPJEPA_TRACEBACK=1 to see where"
        ) from error
    write_page(page, output)
    return ReportResult(output, len(page), answer, reader.problems, reader.stale)


# The page


@dataclass
class Overview:
    """The content of a page, apart from the evaluations, for runs and studies alike.

    Attributes:
        compared: names of the runs or arms, for the headline.
        columns: name of a run or an arm -> its training options and versions.
        groups: name of a line in the charts -> the runs whose mean it shows.
        shown: the runs whose evaluations are shown.
        seeds: for a study, the seeds of its verdicts; the answers on the page are those of the first seed.
    """

    title: str
    compared: list[str]
    columns: dict[str, Record]
    groups: dict[str, list[ReportedRun]]
    shown: list[ReportedRun]
    note: str = ""
    seeds: list[int] = field(default_factory=list)


def report_page(
    folders: Sequence[Path], reader: Reader, max_predictions: int = 200
) -> tuple[str, list[str]]:
    """The HTML of the page, in ASCII, and the paragraphs that state the conclusion."""
    runs, study = read_folders(folders, reader)
    overview = _overview_of_runs(runs) if study is None else _overview_of_study(study, runs)
    drawn = list(make_charts(overview.groups))
    paired = list(paired_rows(overview.shown))
    answer = [row.headline for row in paired if row.headline]
    if study is not None and (len(overview.seeds) > 1 or not answer):
        # Verdicts over all seeds take precedence over a comparison within the first seed.
        answer = study.verdicts
    predictions = prediction_sets(overview.shown, max_predictions, reader)

    # The values that a pointer or the arrow keys show.
    readouts = {
        chart.key: [
            {"name": line.name, "kind": line.kind, "points": line.points} for line in chart.lines
        ]
        for chart in drawn
    }
    style = base_style() + series_rules() + page_part("report", "report.css")
    script = page_part("report", "report.js")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.from_string(page_part("report", "report.html")).render(
        overview=overview,
        study=study,
        runs=runs,
        reader=reader,
        answer=answer,
        accuracy=list(accuracy_rows(overview.shown)),
        paired=[row.cells for row in paired],
        signs=list(_collapse(overview.groups)),
        charts=drawn,
        predictions=predictions,
        settings=settings_rows(list(overview.columns.values())),
        cost=[_cost(run) for run in runs if run.history or run.trained],
        frame=FRAME,
        version=__version__,
        zip=zip,
        policy=page_policy(style, script, "data:"),
        style=Markup(style),
        script=Markup(script),
        data=Markup(script_json({"frame": FRAME, "charts": readouts, "predictions": predictions})),
    )
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii"), answer


def _overview_of_runs(runs: Sequence[ReportedRun]) -> Overview:
    compared = []
    for run in runs:
        settings = {name: run.settings[name] for name in _HEADLINE if name in run.settings}
        control = control_of(run)
        words = f", a control: {control} targets" if control else ""
        compared.append(f"{run.label} ({plain(settings)}){words}")
    labels = [run.label for run in runs]
    return Overview(
        title=" and ".join(labels) if len(runs) < 4 else f"{len(runs)} runs",
        compared=compared,
        columns={run.label: {**run.settings, **_versions(run.record)} for run in runs},
        groups={run.label: [run] for run in runs if run.history},
        shown=list(runs),
    )


def _overview_of_study(study: ReportedStudy, runs: Sequence[ReportedRun]) -> Overview:
    """Curves are means over the seeds of an arm; answers are those of the first seed."""
    seeds = sorted({run.settings["seed"] for run in runs if "seed" in run.settings})
    groups: dict[str, list[ReportedRun]] = {}
    for run in runs:
        if run.history:
            groups.setdefault(run.arm, []).append(run)
    evaluated = [run for run in runs if run.evaluations and run.settings.get("seed") in seeds[:1]]
    first = next((run.record for run in runs if run.record), {})
    made_by = _versions({**first, **study.code})
    return Overview(
        title=study.title or study.path.resolve().name,
        compared=list(study.arms),
        columns={arm: {**settings, **made_by} for arm, settings in study.arms.items()},
        groups=groups,
        # These runs have the same seed, so each is identified by its arm.
        shown=[replace(run, label=run.arm) for run in evaluated],
        note="Each line is the mean over the seeds of an arm, at the steps that all seeds have logged.",
        seeds=seeds,
    )


def _collapse(groups: dict[str, list[ReportedRun]]) -> Iterator[tuple[str, str, list[str], bool]]:
    """For every line of the charts with logged targets: name, verdict, diagnostics at the end of the log, and whether they
    amount to collapse."""
    for name, (run, *_) in groups.items():
        last = last_numbers(run.history)
        if "effective_rank" not in last and "target_std" not in last:
            continue
        if control_of(run) == "random":
            yield name, f"one vector by design (--{_NAME.control} random)", [], False
            continue
        texts, low = logged_collapse(last)
        yield name, collapse_words(low, bool(texts)), texts, low


def _cost(run: ReportedRun) -> list[str]:
    """The row of a run: name, steps, training time, examples per second, FLOPs."""
    steps = [entry["step"] for entry in run.history]
    seconds = run.metrics.get("train_runtime") or run.trained.get("train_seconds")
    flops = run.metrics.get("total_flos") or run.trained.get("flops")
    return [
        run.label,
        f"{max(steps):,.0f}" if steps else "-",
        "-" if seconds is None else clock(seconds),
        written(run.metrics.get("train_samples_per_second"), ".3g"),
        scaled(flops),
    ]


class Row(NamedTuple):
    """A setting or a version, with a cell per run, and whether the cells differ."""

    name: str
    cells: list[str]
    differs: bool


def settings_rows(settings: Sequence[Record]) -> list[Row]:
    """A row for each setting with a value, in the order of the options.

    The run's folder, which the page names above, is left out. A setting that does not affect a run's numbers is not marked
    as different.
    """
    names = dict.fromkeys(options_of(RunOptions, JEPAOptions, TrainerOptions))
    for of_run in settings:
        names |= dict.fromkeys(of_run)
    rows = []
    for name in names:
        cells = [plain(of_run.get(name)) for of_run in settings]
        decides = name not in _OWN and affects_numbers(name)
        if any(cells) and name != _NAME.output_dir:
            rows.append(Row(name, cells, decides and len(set(cells)) > 1))
    return rows


def _versions(record: Record) -> Record:
    """The versions, machine, date and command of a run."""
    versions = {name: record.get(name) for name in (*_VERSIONS, *_OWN)}
    return versions | record.get("machine", {})


def plain(value: object) -> str:
    """The text of a value in a cell; empty for None."""
    if isinstance(value, dict):
        value = [f"{name}={plain(item)}" for name, item in value.items()]
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
