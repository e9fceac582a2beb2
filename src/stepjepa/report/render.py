"""The page: one file with its style, its script and its data in it, that needs no network.

The template escapes every text (Jinja, autoescape). Answers of models reach the page as JSON inside a script element of a
type that no browser runs, and from there the document as text. The page's Content-Security-Policy forbids all connections,
and every script and style but its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from stepjepa.config.option import Names
from stepjepa.inspect.figure import series_rules
from stepjepa.inspect.html import base_style, page_policy, script_json
from stepjepa.modeling.card import collapse_words, logged_collapse
from stepjepa.report.charts import FRAME, PointsOf, history_points, make_charts, mean_points, quantities
from stepjepa.report.comparison import accuracy_rows, control_of, paired_rows, prediction_sets
from stepjepa.report.reading import Found, ReportedRun, ReportedStudy, number
from stepjepa.report.settings import plain, settings_table, versions
from stepjepa.training.options import JEPAOptions, RunOptions, TrainerOptions
from stepjepa.utils.text import scaled, written
from stepjepa.version import __version__

_NAME = Names(RunOptions, JEPAOptions, TrainerOptions)
_HEADLINE = (_NAME.objective, _NAME.seed, _NAME.train_file)  # settings that tell what a run is
_MOST_ARMS = 8  # in a chart
_SIGNS = ("target_std", "effective_rank", "num_pairs")  # of collapse, in a log


@dataclass(frozen=True)
class Page:
    """The HTML of a report, in ASCII, and its first paragraphs: what may be concluded."""

    html: str
    answer: list[str]


@dataclass
class Overview:
    """What a page says of runs or of a study, besides their evaluations.

    Attributes:
        compared: what is compared, for the headline.
        heads, settings: a name and the training options for each column of the settings.
        groups: line of a chart -> its runs, of which the mean is drawn.
        shown: the runs whose evaluations are shown.
        seeds: of a study, over which the verdicts are; the answers are those of the first.
    """

    title: str
    compared: list[str]
    heads: list[str]
    settings: list[dict[str, Any]]
    records: list[dict[str, Any]]
    groups: dict[str, list[ReportedRun]]
    shown: list[ReportedRun]
    note: str = ""
    counts: str = ""
    seeds: list[int] = field(default_factory=list)


def report_page(found: Found, max_predictions: int = 200) -> Page:
    """The page; `max_predictions` is as in `ReportOptions`."""
    runs, study, reader = found.runs, found.study, found.reader
    overview = _overview_of_runs(runs) if study is None else _overview_of_study(study, runs)
    curves: list[tuple[str, PointsOf]] = []
    for name, group in list(overview.groups.items())[:_MOST_ARMS]:
        curves.append((name, partial(mean_points, [run.history for run in group])))
    drawn = list(make_charts(curves, quantities(runs)))
    paired = list(paired_rows(overview.shown))
    answer = [row.headline for row in paired if row.headline]
    if study is not None and (len(overview.seeds) > 1 or not answer):
        answer = study.verdicts  # those over several seeds
    predictions = prediction_sets(overview.shown, max_predictions, reader)
    data_reports = [(run.label, run.data) for run in overview.shown[: 1 if study else None]]

    style, script = base_style() + series_rules() + _part("report.css"), _part("report.js")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.from_string(_part("report.html")).render(
        overview=overview,
        study=study,
        answer=answer,
        folders=[str(run.path) for run in runs] if study is None else [str(study.path)],
        stale=reader.stale,
        problems=reader.problems,
        unfinished=[run.label for run in overview.shown if run.unfinished and run.history and study is None],
        accuracy=list(accuracy_rows(overview.shown)),
        paired=paired,
        unfinished_evaluations=[
            f"{run.label}: {name}" for run in runs for name, one in run.evaluations.items() if not one.result
        ],
        not_evaluated=[run.label for run in overview.shown if not run.evaluations],
        signs=list(_collapse(overview.groups)),
        charts=drawn,
        without_log=[run.label for run in runs if not run.history] if study is None else [],
        has_predictions=bool(predictions),
        settings=settings_table(overview.settings),
        data_reports=data_reports,
        versions=versions(overview.records),
        cost=[_cost(run) for run in runs if run.history or run.trained],
        frame=FRAME,
        version=__version__,
        policy=page_policy(style, script, "data:"),
        style=Markup(style),
        script=Markup(script),
        data=Markup(
            script_json(
                {
                    "frame": FRAME,
                    "charts": {chart.key: chart.readout() for chart in drawn},
                    "predictions": predictions,
                }
            )
        ),
    )
    return Page(page.encode("ascii", "xmlcharrefreplace").decode("ascii"), answer)


def _part(name: str) -> str:
    return (files("stepjepa.report") / "page" / name).read_text(encoding="ascii")


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
        heads=labels,
        settings=[run.settings for run in runs],
        records=[run.record for run in runs],
        groups={run.label: [run] for run in runs if run.history},
        shown=list(runs),
    )


def _overview_of_study(study: ReportedStudy, runs: Sequence[ReportedRun]) -> Overview:
    """Of a study the curves are means over the seeds of an arm, and the answers those of its first seed."""
    seeds = sorted({int(seed) for run in runs if (seed := number(run.settings, "seed")) is not None})
    order = list(study.arms)
    groups: dict[str, list[ReportedRun]] = {}
    for run in sorted(runs, key=lambda run: _place(order, run.arm)):
        if run.history:
            groups.setdefault(run.arm, []).append(run)
    counts = ", ".join(f"{name} {len(group)}" for name, group in list(groups.items())[:_MOST_ARMS])
    note = (
        f"Each line is the mean over the seeds of an arm, at the steps that all of them have logged (runs: {counts})."
    )
    if len(groups) > _MOST_ARMS:
        note += f" Left out, so that lines can be told apart: {', '.join(list(groups)[_MOST_ARMS:])}."
    states = Counter(_state(run) for run in runs)
    evaluated = [run for run in runs if run.evaluations and run.settings.get("seed") in seeds[:1]]
    shown = [replace(run, label=run.arm) for run in evaluated]  # all are of one seed
    first = next((run.record for run in runs if run.record), {})
    return Overview(
        title=study.title or study.path.resolve().name,
        compared=order,
        heads=order,
        settings=list(study.arms.values()),
        records=[{**first, **study.code}],
        groups=groups,
        shown=sorted(shown, key=lambda run: _place(order, run.arm)),
        note=note if groups else "",
        counts=", ".join(f"{count} {state}" for state, count in states.items()) or "no run has begun",
        seeds=seeds,
    )


def _place(order: Sequence[str], arm: str) -> int:
    """The place of an arm, with or without its tuned values, among the arms of a study."""
    for name in (arm, arm.rpartition("/")[0]):
        if name in order:
            return order.index(name)
    return len(order)


def _state(run: ReportedRun) -> str:
    if run.scored:
        return "trained and scored"
    if run.trained:
        return "trained"
    return "begun" if run.history or run.record else "not begun"


def _collapse(groups: dict[str, list[ReportedRun]]) -> Iterator[tuple[str, str, list[str], bool]]:
    """Of every line of the charts with logged targets: its name, a verdict, the signs of collapse in its last values, and
    whether they amount to collapse."""
    for name, (run, *_) in groups.items():
        last = {}
        for key in _SIGNS:
            points = history_points(run.history, key)
            if points:
                last[key] = points[-1][1]
        if "effective_rank" not in last and "target_std" not in last:
            continue
        if control_of(run) == "random":
            yield name, f"one vector by design (--{_NAME.control} random)", [], False
            continue
        texts, low = logged_collapse(last)
        yield name, collapse_words(low, bool(texts)), texts, low


def _cost(run: ReportedRun) -> list[str]:
    """Of a run: steps, training time, examples per second, FLOPs."""
    steps = [step for entry in run.history if (step := number(entry, "step")) is not None]
    seconds = number(run.metrics, "train_runtime") or number(run.trained, "train_seconds")
    flops = number(run.metrics, "total_flos") or number(run.trained, "flops")
    return [
        run.label,
        f"{max(steps):,.0f}" if steps else "-",
        duration(seconds),
        written(number(run.metrics, "train_samples_per_second"), ".3g"),
        scaled(flops),
    ]


def duration(seconds: float | None) -> str:
    """``42.1 s``, ``12 min 5 s``, ``3 h 20 min``."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"
