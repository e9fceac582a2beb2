"""The page: one file with its style, its script, its pictures and its data in it, that needs no network.

The template escapes every text (Jinja, autoescape). Answers of models reach the page as JSON inside a script element of a
type that no browser runs, and from there the document as text. The page's Content-Security-Policy forbids all connections,
and every script and style but its own.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from stepjepa.analysis.geometry import ADVICE
from stepjepa.config.option import Names, check_fields, option, options_of, unread_options
from stepjepa.config.parser import build
from stepjepa.errors import ConfigError, StepJepaError
from stepjepa.evaluation.compare import PairedMetric, paired_metrics
from stepjepa.evaluation.metrics import NLL
from stepjepa.evaluation.predictions import Prediction, read_predictions
from stepjepa.inspect.html import base_style, page_policy, script_json, write_page
from stepjepa.modeling.card import collapse_words
from stepjepa.objectives.base import OBJECTIVES, find_objective, idle_options, trained_pairs
from stepjepa.report import charts, reading
from stepjepa.report.reading import STALE, Found, Reader, Run, Study, number, table
from stepjepa.training.options import JEPAOptions
from stepjepa.training.run_options import RunOptions, TrainerOptions
from stepjepa.utils.text import scaled, written
from stepjepa.version import __version__

UNREAD = "-"
_DEMO = ("cosine", "shuffled_cosine", "target_std", "effective_rank")  # what a demo measures of held-out pairs
_VERSIONS = ("stepjepa", "torch", "transformers", "peft", "python", "source", "processes", "device", "git_commit")
_OWN = ("date", "durations", "command")  # differ from run to run
_UNITS = {"cpus": " CPUs", "memory_gib": " GiB"}
_TEXT_ROOM = 1_200_000  # characters of all texts of the predictions
_LONGEST, _SHORTEST = 6000, 400  # of one text, however many there are
_TELLING = ("objective", "seed", "train_file")  # settings of the headline
_MOST_SERIES = 8
_ALL_PAIRS = 5  # runs of which every two are compared; of more each with the first
_BLANK = re.compile(r"\n(?:[^\S\n]*\n){3,}")
_LARGE = 3_000_000  # bytes of a page
Row = tuple[str, list[str], bool]  # name, a cell for each run, whether the cells differ


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


_NAME = Names(ReportOptions)


@dataclass(frozen=True)
class ReportResult:
    """A page that was written; printed, what was left out and where the page is.

    Attributes:
        path: the page.
        bytes: its size.
        problems: a sentence for each file that could not be used.
        stale: a sentence for each evaluation that is not of the present model.
    """

    path: Path
    bytes: int
    problems: list[str]
    stale: list[str]

    def __str__(self) -> str:
        lines = [*(f"left out {problem}" for problem in self.problems), *(f"stale    {one}" for one in self.stale)]
        if self.bytes > _LARGE:
            remedy = f"fewer folders, or a smaller --{_NAME.max_predictions}, make it smaller"
            lines.append(f"the page is larger than {_LARGE / 1e6:g} MB; {remedy}")
        return "\n".join([*lines, f"written: {self.path} ({self.bytes / 1e6:.2f} MB)"])


def report(**options: Any) -> ReportResult:
    """Write one HTML page of runs, of a study or of a demo: ``stepjepa report``.

    Args:
        options: those of ``stepjepa report`` by name, such as ``folders=["runs/a", "runs/b"]``.

    Raises:
        ConfigError: a folder holds nothing to report, or the page cannot be written.
    """
    (asked,) = build((ReportOptions,), options)
    check_fields(asked)
    if not asked.folders:
        raise ConfigError("no folder given; write: stepjepa report RUN_OR_STUDY")
    folders = [Path(name).expanduser() for name in asked.folders]
    output = Path(asked.output_file).expanduser() if asked.output_file else folders[0] / "report.html"
    found = reading.read_folders(folders, [Path(name).expanduser() for name in asked.geometry or ()])
    if output.is_dir():
        raise ConfigError(f"{output}: is a folder; give a file")
    if output.exists() and not asked.overwrite:
        remedy = f"replace it with --{_NAME.overwrite}, or give another --{_NAME.output_file}"
        raise ConfigError(f"{output} exists; {remedy}")
    page = report_page(found, asked.max_predictions)
    write_page(page, output)
    return ReportResult(output, len(page), found.reader.problems, found.reader.stale)


def report_page(found: Found, max_predictions: int = 200) -> str:
    """The page, in ASCII; `max_predictions` is as in `ReportOptions`."""
    runs, reader = found.runs, found.reader
    context = _runs_sections(runs) if found.study is None else _study_sections(found.study, runs, reader)
    losses = charts.make_charts(context["curves"], charts.loss_quantities(runs))
    losses += charts.layer_charts(context["curves"])
    sign_charts = charts.make_charts(context["curves"], charts.SIGNS)
    predictions = prediction_sets(runs, max_predictions, reader)
    geometry = [reading.geometry_record(folder, reader) for folder in found.geometry]
    models = [model for one in geometry for _, model, _, collapse in one["signs"] if collapse]
    collapsed_folders = {Path(model).expanduser().resolve() for model in models}
    curves = {chart.key: chart.readout() for chart in [*losses, *sign_charts]}
    style, script = base_style() + _part("report.css"), _part("report.js")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.from_string(_part("report.html")).render(
        **context,
        losses=losses,
        sign_charts=sign_charts,
        geometry=geometry,
        # The log knows the targets of training batches alone, the analysis the states of both views.
        collapsed_states={run.label for run in runs if run.path.resolve() in collapsed_folders},
        collapse_words=collapse_words,
        has_predictions=bool(predictions),
        advice=ADVICE,
        frame=charts.FRAME,
        short=charts.short,
        version=__version__,
        problems=reader.problems,
        stale=reader.stale,
        made=made_on([run.record for run in runs]),
        policy=page_policy(style, script, "data:"),
        style=Markup(style),
        script=Markup(script),
        data=Markup(script_json({"frame": charts.FRAME, "charts": curves, "predictions": predictions})),
    )
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _part(name: str) -> str:
    return (files("stepjepa.report") / "page" / name).read_text(encoding="ascii")


def _runs_sections(runs: Sequence[Run]) -> dict[str, Any]:
    signs = {run.label: charts.logged_signs(run) for run in runs}
    unfinished = [(run.label, name) for run in runs for name, one in run.evaluations.items() if not one.result]
    accuracy, paired = accuracy_rows(runs), list(paired_rows(runs))
    return {
        "study": None,
        "compared": [
            f"{run.label} ({plain({name: run.settings[name] for name in _TELLING if name in run.settings})})"
            + (f", a control: {control} targets" if (control := control_of(run)) else "")
            for run in runs
        ],
        "answer": [row.headline for row in paired if row.headline],
        "title": " and ".join(run.label for run in runs) if len(runs) < 4 else f"{len(runs)} runs",
        "folders": [str(run.path) for run in runs],
        "heads": [run.label for run in runs],
        "settings": settings_table([run.settings for run in runs]),
        "versions": versions([run.record for run in runs]),
        "data_reports": [(run.label, reading.data_lines(run.data)) for run in runs],
        "unfinished": [run.label for run in runs if run.unfinished and run.history],
        "curves": [(run.label, partial(charts.history_points, run.history)) for run in runs],
        "curves_note": "",
        "without_log": [run.label for run in runs if not run.history],
        "signs": [(label, one) for label, one in signs.items() if one],
        # A run shorter than its `logging_steps` has no entry of its training.
        "no_signs": [(run, charts.history_points(run.history, "lm_loss")) for run in runs if not signs[run.label]],
        "demo": [[run.label, *(written(number(run.demo, name), ".4f") for name in _DEMO)] for run in runs if run.demo],
        "accuracy": accuracy,
        "paired": paired,
        "not_evaluated": [run.label for run in runs if not run.evaluations],
        "unfinished_evaluations": [f"{label}: {name}" for label, name in unfinished],
        "cost": list(charts.cost_rows(runs)),
    }


def _study_sections(study: Study, runs: Sequence[Run], reader: Reader) -> dict[str, Any]:
    parts, groups = list(reading.parts_of(study.tables)), reading.arm_runs(study, runs)
    shown = list(groups)[:_MOST_SERIES]
    counts = ", ".join(f"{name} {len(groups[name])}" for name in shown)
    note = (
        f"Each line is the mean over the seeds of an arm, at the steps that all of them have logged (runs: {counts})."
    )
    if len(groups) > len(shown):
        note += f" Left out, so that lines can be told apart: {', '.join(list(groups)[_MOST_SERIES:])}."
    curves: list[tuple[str, charts.PointsOf]] = [
        (name, partial(charts.mean_points, [run.history for run in groups[name]])) for name in shown
    ]
    states = Counter(
        "trained and scored" if "scored-test" in run.stages
        else "trained" if "trained" in run.stages
        else "begun" if run.history or run.record
        else "not begun"
        for run in runs
    )  # fmt: skip
    trained = [run.stages["trained"] for run in runs if "trained" in run.stages]
    seconds, flops = (
        [value for one in trained if (value := number(one, name)) is not None] for name in ("train_seconds", "flops")
    )
    spent = f"{charts.duration(sum(seconds) if seconds else None)} and {scaled(sum(flops) if flops else None)} FLOPs"
    first = next((run for run in runs if run.data), None)
    known = {name: [plain(run.settings[name]) for run in runs if name in run.settings] for name in _TELLING[1:]}
    told = {name: list(dict.fromkeys(values)) for name, values in known.items() if values}
    return {
        "study": {
            "parts": parts,
            "counts": ", ".join(f"{count} {state}" for state, count in states.items()),
            "cost": f"{len(seconds)} trainings: {spent} in all; means of each arm are in the tables.",
        },
        "compared": [*study.arms, plain(told)],
        "answer": re.split(r"\n(?! )", "\n".join(study.verdicts)) if study.verdicts else [],
        "figures": [one for path in study.figures if (one := reader.picture(path, path.stem))],
        "title": parts[0][1] if parts and parts[0][0] == "heading" else study.path.resolve().name,
        "folders": [str(study.path)],
        "heads": list(study.arms),
        "settings": settings_table(list(study.arms.values())),
        "versions": versions([{**(first.record if first else {}), **table(study.state, "identity", "code")}]),
        "data_reports": [(f"{first.label} (one of the runs)", reading.data_lines(first.data))] if first else [],
        "curves": curves,
        "curves_note": note if shown else "",
        "signs": list(charts.arm_signs(groups)),
        **dict.fromkeys(("unfinished", "without_log", "no_signs", "demo"), []),  # the tables say it
    }


def settings_table(settings: Sequence[Mapping[str, Any]]) -> tuple[list[Row], list[Row]]:
    """Settings that differ or were changed from their defaults, and all others; `UNREAD` where a run does not read one.

    Names of the runs' own folders, and options that decide no number of a run, are never said to differ.
    """
    known = {name: one for kind in (RunOptions, JEPAOptions, TrainerOptions) for name, one in options_of(kind).items()}
    idle = []
    for one in settings:
        method = JEPAOptions(**{name: one[name] for name in options_of(JEPAOptions) if name in one})
        unread = {found.name for found in unread_options(method, options_of(JEPAOptions))}
        name = str(one.get("objective"))  # a file of one's own is not imported
        idle.append(unread | (idle_options(find_objective(name)(method)) if name in OBJECTIVES else frozenset()))
    main, rest = list[Row](), list[Row]()
    for name in dict.fromkeys([*known, *sorted({name for one in settings for name in one})]):
        cells = [
            UNREAD if name in unread else plain(one[name]) if name in one else ""
            for one, unread in zip(settings, idle, strict=True)
        ]
        read = [cell for cell in cells if cell != UNREAD]
        differs = len(set(read)) > 1
        own = all(f"{one.get(name)}/".startswith(f"{one.get('output_dir', '/')}/") for one in settings)
        if not any(read) or own or (differs and name in known and not known[name].identity):
            continue
        if differs or (name in known and any(cell != plain(known[name].default) for cell in read)):
            main.append((name, cells, differs))
        else:
            rest.append((name, read[:1], False))
    return main, rest


def plain(value: object) -> str:
    """A setting in a cell."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ", ".join(f"{name}={plain(one)}" for name, one in value.items()) or "none"
    if isinstance(value, list):
        return ("; " if any(isinstance(one, dict) for one in value) else ", ").join(map(plain, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def versions(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Versions by package, machine, date and command."""
    flat = [{**one, **table(one, "machine")} for one in records]
    names = dict.fromkeys([*_VERSIONS, *(name for one in records for name in table(one, "machine")), *_OWN])
    rows = [(name, [plain(one[name]) if one.get(name) is not None else "" for one in flat]) for name in names]
    return [(name, cells, len(set(cells)) > 1 and name not in _OWN) for name, cells in rows if any(cells)]


def made_on(records: Sequence[Mapping[str, Any]]) -> str:
    """The days and the machines of runs; empty where they were not recorded."""
    days = sorted({plain(one["date"])[:10] for one in records if one.get("date")})
    machines = dict.fromkeys(
        ", ".join(f"{plain(value)}{_UNITS.get(name, '')}" for name, value in table(one, "machine").items() if value)
        for one in records
    )
    return "; ".join(filter(None, [" to ".join(dict.fromkeys([*days[:1], *days[-1:]])), *machines]))


def control_of(run: Run) -> str:
    """Which control a run is, empty for none."""
    kind = str(run.settings.get("control") or "none")
    return kind if kind != "none" and trained_pairs(run.settings) else ""


def accuracy_rows(runs: Sequence[Run]) -> list[tuple[list[str], list[float] | None]]:
    """A row for each evaluation, metric and run, those of one evaluation and metric together.

    Its cells are evaluation, metric, run, value, interval, what it is of, answers that did not stop, and rows skipped; with
    them come value, low and high of a bar in percent.
    """
    rows = []
    for name in _names(runs):
        results = {run.label: run.evaluations[name].result for run in runs if name in run.evaluations}
        for metric in dict.fromkeys(metric for one in results.values() for metric in table(one, "metrics")):
            for label, result in results.items():
                found = table(result, "metrics", metric)
                stop = table(result, "generation", "did_not_stop")
                skipped = sum(number(count) or 0 for count in table(result, "rows", "skipped").values())
                if found:
                    cells, bar = _metric(found)
                    counts = [f"{stop.get('count')} of {stop.get('n')}" if stop else "-", f"{skipped:g}"]
                    rows.append(([name, metric, label, *cells, *counts], bar))
    return rows


def _metric(found: dict[str, Any]) -> tuple[list[str], list[float] | None]:
    """A metric's value, its interval and what it is of; and its bar."""
    value, low, high = (number(found, name) for name in ("value", "low", "high"))
    if found.get("kind") == "accuracy":
        shares = [100 * end for end in (value, low, high) if end is not None]
        ends = f"[{shares[1]:.1f}, {shares[2]:.1f}]" if len(shares) == 3 else ""
        bar = [round(end, 1) for end in shares] if len(shares) == 3 else None
        return [written(value, ".1%"), ends, f"{found.get('correct')} of {found.get('n')} right"], bar
    ends = "" if low is None or high is None else f"[{low:.4f}, {high:.4f}]"
    if "perplexity" in found:  # the interval is that of the rows' mean
        mean = written(number(found, "row_mean"), ".4f")
        bits = number(found, "bits_per_byte")
        per_byte = "" if bits is None else f", {bits:.4f} bits per byte"
        of = f"nats per token{per_byte}; mean of {found.get('n')} rows {mean} {ends}"
        return [written(value, ".4f"), "", of.strip()], None
    return [written(value, ".4f"), ends, f"mean of {found.get('n')} answers"], None


def _names(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.evaluations))


@dataclass(frozen=True)
class PairedRow:
    """Two models in one metric on the same questions.

    Attributes:
        names: evaluation and metric, model a, model b.
        cells: the difference, its interval, McNemar's p, and how many questions both, only a, only b and neither answered
            right; of a metric that does not say right or wrong the first two.
        n: questions.
        why_not: why two cannot be compared; empty where they are.
        headline: its paragraph of the answer, empty where it has none.
    """

    names: list[str]
    cells: list[str] = field(default_factory=list)
    n: int = 0
    why_not: str = ""
    headline: str = ""


def paired_rows(runs: Sequence[Run]) -> Iterator[PairedRow]:
    """Every two models that have answered the same questions, in each metric that they share; those without pairs first,
    then controls. The headline has those with the first model, and a method after its control, in the first metric and in
    the likelihood of the reference answers."""
    from stepjepa.evaluation.intervals import conclusion, mcnemar_p, paired_counts, paired_difference

    controls = {run.label: control_of(run) for run in runs}
    same_flop = {run.label for run in runs if run.settings.get("same_flop")}
    runs = sorted(runs, key=lambda run: (trained_pairs(run.settings), not controls[run.label]))
    for name in _names(runs):
        known = {run.label: run.evaluations[name] for run in runs if name in run.evaluations}
        labels = [label for label, one in known.items() if one.predictions or one.likelihoods or one.verdicts]
        for a, b in combinations(labels, 2) if len(labels) <= _ALL_PAIRS else ((labels[0], one) for one in labels[1:]):
            one, other = known[a], known[b]
            files = [each.predictions or each.likelihoods for each in (one, other)]
            try:
                if files[0] is not None and files[1] is not None:
                    found = paired_metrics(files[0], files[1])
                else:
                    counts = paired_counts(one.verdicts, other.verdicts)
                    found = [PairedMetric("final answer", paired_difference(*counts), sum(counts), counts)]
            except (StepJepaError, ValueError) as error:
                yield PairedRow([name, a, b], why_not=str(error))
                continue
            is_headline = (a == labels[0] or (controls[a] and not controls[b])) and not name.endswith(STALE)
            for paired in found:
                cells = list(difference_cells(paired))
                if paired.counts is not None:
                    cells += [f"{mcnemar_p(*paired.counts[1:3]):.3g}", *map(str, paired.counts)]
                headline = ""
                if is_headline and (paired is found[0] or paired.metric == NLL):
                    value, ends = cells[:2]
                    shown = f"{value} ({ends[1:-1].replace(', ', ' to ')})" if ends else value
                    headline = f"{b} - {a}: {shown}, 95 % interval; {paired.metric} of {paired.n} questions ({name})\n"
                    if controls[b]:
                        headline += f"{b} is a control: only what a run gains over it can come from its pairs."
                    else:
                        headline += conclusion(
                            paired.difference,
                            a,
                            b,
                            "shuffled" in controls.values(),
                            b in same_flop,
                            counts=paired.counts,
                            lower_is_better=paired.metric == NLL,
                        )
                yield PairedRow([f"{name}, {paired.metric}", a, b], cells, paired.n, headline=headline)


def difference_cells(paired: PairedMetric) -> tuple[str, str]:
    """A difference with its unit, and its interval."""
    unit = " nats per token" if paired.metric == NLL else ""
    scale, form = 1, "+.4f"
    if paired.counts is not None:
        unit, scale, form = " points", 100, "+.1f"
    value, low, high = (None if end is None else f"{scale * end:{form}}" for end in paired.difference)
    ends = "" if low is None or high is None else f"[{low}, {high}]"
    return "-" if value is None else f"{value}{unit}", ends


def prediction_sets(runs: Sequence[Run], most: int, reader: Reader) -> list[dict[str, Any]]:
    """The answers of every evaluation, as the page's script reads them.

    Of each: ``name``; ``models`` (label, metric, and a letter for every question: ``r`` right, ``w`` wrong, ``u`` neither,
    ``-`` not asked), so that counts are of all questions; ``rows``, at most `most` questions with all texts, the same number
    of each pattern of right and wrong as far as there are.
    """
    answers = defaultdict[str, dict[str, list[Prediction]]](dict)
    for run in runs:
        for name, one in run.evaluations.items():
            if one.predictions is not None:
                try:
                    answers[name][run.label] = read_predictions(one.predictions)
                except StepJepaError as error:
                    reader.problems.append(str(error))
    texts = sum(min(most, max(map(len, models.values()))) * (2 + len(models)) for models in answers.values())
    longest = min(_LONGEST, max(_SHORTEST, _TEXT_ROOM // max(texts, 1)))
    return [_prediction_set(name, answers[name], most, longest) for name in _names(runs) if name in answers]


def _prediction_set(name: str, answers: dict[str, list[Prediction]], most: int, longest: int) -> dict[str, Any]:
    by_question = [{(one.index, one.question): one for one in found} for found in answers.values()]
    keys = sorted({key for found in by_question for key in found})
    verdict = {None: "u", True: "r", False: "w"}
    letters = ["".join(verdict[found[key].correct] if key in found else "-" for key in keys) for found in by_question]
    rows = []
    for place in chosen(letters, most):
        given = [found.get(keys[place]) for found in by_question]
        known = next(one for one in given if one is not None)
        reference = known.gt_answer if known.gt_answer is not None else known.ground_truth
        texts = [
            one and {
                "text": cut(one.generated_response, longest),
                "found": cut(one.gen_answer or "", longest),
                "stop": str(one.stop_reason or ""),
            }
            for one in given
        ]  # fmt: skip
        row = {"place": place, "index": known.index, "question": cut(known.question, longest)}
        rows.append({**row, "reference": cut(reference or "", longest), "answers": texts})
    models = [
        {"label": label, "metric": next(iter(found[0].scores), ""), "letters": line}
        for (label, found), line in zip(answers.items(), letters, strict=True)
    ]
    return {"name": name, "models": models, "rows": rows}


def chosen(letters: Sequence[str], most: int) -> list[int]:
    """Positions of at most `most` questions: of every pattern of right and wrong the first ones, in turns."""
    waiting = defaultdict[tuple[str, ...], deque[int]](deque)
    for place, pattern in enumerate(zip(*letters, strict=True)):
        waiting[pattern].append(place)
    turns = sorted((turn, places[0], place) for places in waiting.values() for turn, place in enumerate(places))
    return sorted(place for *_, place in turns[:most])


def cut(text: str, longest: int) -> str:
    """A text, with its middle left out where it is longer, and of many blank lines their number."""
    text = _BLANK.sub(lambda found: f"\n[... {found[0].count(chr(10)) - 1} blank lines ...]\n", text)
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters are left out here ...]\n{text[-half:]}"
