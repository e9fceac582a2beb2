"""The page: one file with its style, its script, its pictures and its data in it, that needs no network.

The template escapes every text (Jinja, autoescape). Answers of models reach the page as JSON inside a script element of a
type that no browser runs, and from there the document as text. The page's Content-Security-Policy forbids all connections,
and every script and style but its own.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from stepjepa.inspect.html import base_style, element_hash, script_json
from stepjepa.report import answers, commands, runs, signs, studies
from stepjepa.report.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, short
from stepjepa.report.files import mapping, number
from stepjepa.report.geometry import Album, geometry_record
from stepjepa.report.palette import colour_rules
from stepjepa.report.reading import Found, Run, StudyFolder
from stepjepa.version import __version__

_PARTS = files("stepjepa.report") / "page"
_POLICY = (
    "default-src 'none'; img-src data:; script-src '{script}'; style-src '{style}'; base-uri 'none'; form-action 'none'"
)
# Of a picture: where the lines are.
_FRAME = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "top": TOP, "bottom": HEIGHT - BOTTOM}


def report_page(found: Found, max_predictions: int = 200) -> str:
    """The page, in ASCII.

    Args:
        found: from `reading.read_folders`.
        max_predictions: questions whose answers are put into the page, of each evaluation; counts are of all.
    """
    context = _study(found.study) if found.study else _runs(found, max_predictions)
    album = Album(found.reader)
    if found.study:
        pictures = (album.picture(path, _figure_title(path.stem)) for path in found.study.figures)
        context["study_figures"] = [one for one in pictures if one is not None]
    context["geometry"] = [geometry_record(folder, album) for folder in found.geometry]
    context["geometry_missing"] = commands.measure_geometry(found)
    drawn: list[Chart] = [*context["losses"], *context["sign_charts"]]
    data = {
        "frame": _FRAME,
        "charts": {chart.key: chart.readout() for chart in drawn},
        "predictions": context.pop("predictions"),
    }
    style, script = colour_rules() + base_style() + _part("report.css"), _part("report.js")
    page = _template().render(
        **context,
        advice=signs.ADVICE,
        frame=_FRAME,
        short=short,
        version=__version__,
        problems=found.reader.problems,
        policy=_POLICY.format(style=element_hash(style), script=element_hash(script)),
        style=Markup(style),
        script=Markup(script),
        data=Markup(script_json(data)),
    )
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _runs(found: Found, most: int) -> dict[str, Any]:
    read, reader = found.runs, found.reader
    histories = [(run.label, run.history) for run in read]
    logged = [(run.label, signs.logged_signs(run)) for run in read]
    predictions = answers.prediction_sets(read, most, reader)
    return {
        "kind": "demo" if found.demo else "runs",
        "title": " and ".join(run.label for run in read) if len(read) < 4 else f"{len(read)} runs",
        "folders": [(run.label, str(run.path)) for run in read],
        "heads": [run.label for run in read],
        "settings": runs.settings_table([run.settings for run in read]),
        "versions": runs.versions([run.record for run in read]),
        "data_reports": [(run.label, runs.data_lines(run)) for run in read],
        "unfinished": [run.label for run in read if run.unfinished and run.history],
        "losses": runs.charts(histories, runs.loss_quantities(read)),
        "losses_note": "",
        "losses_missing": [commands.train_again(run) for run in read if not run.history],
        "signs": [(label, one) for label, one in logged if one],
        "no_signs": [label for label, one in logged if one is None],
        "sign_charts": runs.charts(histories, runs.SIGNS),
        "demo_signs": _demo_signs(read),
        "accuracy": answers.accuracy_rows(read),
        "accuracy_missing": [commands.evaluate_it(run, found) for run in read if not run.evaluations],
        "unfinished_evaluations": [
            f"{run.label}: {one.name}" for run in read for one in run.evaluations.values() if one.unfinished
        ],
        "paired": answers.paired_rows(read),
        "predictions": predictions,
        "has_predictions": bool(predictions),
        "max_predictions": most,
        "study": None,
        "cost": runs.cost_rows(read),
    }


def _study(study: StudyFolder) -> dict[str, Any]:
    arms, (series, note) = studies.arm_settings(study), studies.series(study)
    counts, missing = studies.run_states(study)
    tables = studies.study_tables(study)
    first = next((run for run in study.runs if run.data), None)
    return {
        "kind": "study",
        "title": str(study.table.get("title") or study.path.resolve().name),
        "folders": [("study", str(study.path))],
        "heads": [name for name, _ in arms],
        "settings": runs.settings_table([settings for _, settings in arms]),
        "versions": runs.versions([mapping(mapping(study.state.get("identity")).get("code"))]),
        "data_reports": [(f"{first.label} (one of the runs)", runs.data_lines(first))] if first else [],
        "unfinished": [],
        "losses": runs.charts_of_points(series, runs.loss_quantities(study.runs)),
        "losses_note": note,
        "losses_missing": []
        if series
        else ["No run has logged anything yet: stepjepa study FILE goes on where it was ended."],
        "signs": _study_signs(study),
        "no_signs": [],
        "sign_charts": runs.charts_of_points(series, runs.SIGNS),
        "demo_signs": [],
        "accuracy": [],
        "accuracy_missing": [],
        "unfinished_evaluations": [],
        "paired": [],
        "predictions": [],
        "has_predictions": False,
        "predictions_missing": commands.answers_of_study(study),
        "study": {
            "tables": tables,
            "choices": studies.choices(study),
            "counts": ", ".join(f"{count} {state}" for state, count in counts.items()),
            "missing": missing,
            "cost": studies.cost(study),
        },
        "cost": [],
    }


def _figure_title(stem: str) -> str:
    metric = stem.removeprefix("study").lstrip("_")
    return f"Differences between arms{f' in {metric}' if metric else ' in the first metric'}, with their intervals"


def _study_signs(study: StudyFolder) -> list[tuple[str, dict[str, Any]]]:
    """Of every arm the first run whose log shows a sign, and how many do."""
    found = []
    for arm, several in studies.arms_of(study).items():
        logged = [one for run in several if (one := signs.logged_signs(run))]
        shown = [one for one in logged if one["signs"]]
        if logged:
            label = f"{arm} ({len(shown)} of {len(logged)} runs)" if shown else arm
            found.append((label, next((one for one in shown if one["collapsed"]), (shown or logged)[0])))
    return found


def _demo_signs(read: list[Run]) -> list[tuple[str, list[str]]]:
    names = ("cosine", "shuffled_cosine", "target_std", "effective_rank")
    return [
        (run.label, ["-" if (value := number(run.demo.get(name))) is None else f"{value:.4f}" for name in names])
        for run in read
        if run.demo
    ]


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
