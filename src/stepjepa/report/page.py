"""The page: one file with its style, its script, its pictures and its data in it, that needs no network.

The template escapes every text (Jinja, autoescape). Answers of models reach the page as JSON inside a script element of a
type that no browser runs, and from there the document as text. The page's Content-Security-Policy forbids all connections,
and every script and style but its own.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from stepjepa.analysis.collapse import CONE_COSINE, LOW_RANK, RANK_ROWS
from stepjepa.analysis.summary import ADVICE
from stepjepa.config.option import check_fields, option, options_of, unread_options
from stepjepa.data.report import DataReport
from stepjepa.errors import ConfigError, StepJepaError
from stepjepa.evaluation.predictions import Prediction, read_predictions
from stepjepa.inspect.html import base_style, element_hash, script_json, write_page
from stepjepa.report import studies
from stepjepa.report.charts import FRAME, history_points, make_charts, short
from stepjepa.report.reading import Found, Reader, Run, Study, number, read_folders, table
from stepjepa.training.options import JEPAOptions, not_read
from stepjepa.training.run_options import RunOptions, TrainerOptions
from stepjepa.utils.text import scaled
from stepjepa.version import __version__

_DATACLASSES = (RunOptions, JEPAOptions, TrainerOptions)
UNREAD = "-"
LOSSES = (("lm_loss", "LM loss (nats per labelled token)"), ("jepa_loss", "JEPA loss"))
SIGNS = (
    ("cosine_similarity", "cosine of source and target"),
    ("target_std", "spread of the targets (target_std)"),
    ("effective_rank", "effective rank of the targets"),
)
_DEMO = ("cosine", "shuffled_cosine", "target_std", "effective_rank")  # what a demo measures of held-out pairs
_VERSIONS = ("stepjepa", "torch", "transformers", "peft", "python", "source", "processes")
_TEXT_ROOM = 1_200_000  # characters of all texts of the predictions
_LONGEST, _SHORTEST = 6000, 400  # of one text, however many there are
Row = tuple[str, list[str], bool]  # name, a cell for each run, whether the cells differ
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
    sign_charts = make_charts(context["curves"], SIGNS)
    predictions = prediction_sets(found.runs, max_predictions, found.reader)
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
    logged = [(run.label, logged_signs(run)) for run in runs]
    return {
        "study": None,
        "title": " and ".join(run.label for run in runs) if len(runs) < 4 else f"{len(runs)} runs",
        "folders": [str(run.path) for run in runs],
        "heads": [run.label for run in runs],
        "settings": settings_table([run.settings for run in runs]),
        "versions": versions([run.record for run in runs]),
        "data_reports": [(run.label, data_lines(run.data)) for run in runs],
        "unfinished": [run.label for run in runs if run.unfinished and run.history],
        "curves": [(run.label, partial(history_points, run.history)) for run in runs],
        "curves_note": "",
        "loss_quantities": loss_quantities(runs),
        "without_log": [run.label for run in runs if not run.history],
        "signs": [(label, one) for label, one in logged if one],
        "no_signs": [label for label, one in logged if one is None],
        "demo": [
            [run.label, *(studies.written(number(run.demo, name), ".4f") for name in _DEMO)] for run in runs if run.demo
        ],
        "accuracy": accuracy_rows(runs),
        "paired": list(studies.paired_rows(runs)) if len(runs) > 1 else [],
        "not_evaluated": [run.label for run in runs if not run.evaluations],
        "unfinished_evaluations": [
            f"{run.label}: {name}" for run in runs for name, one in run.evaluations.items() if not one.result
        ],
        "cost": list(cost_rows(runs)),
    }


def _study(study: Study, album: studies.Album) -> dict[str, Any]:
    arms, (curves, note) = studies.arm_settings(study), studies.curves(study)
    parts = list(studies.parts_of(study.tables))
    first = next((run for run in study.runs if run.data), None)
    pictures = [album.picture(path, path.stem) for path in study.figures]
    return {
        "study": {"parts": parts, "counts": studies.run_states(study), "cost": _study_cost(study)},
        "figures": [one for one in pictures if one],
        "title": parts[0][1] if parts and parts[0][0] == "heading" else study.path.resolve().name,
        "folders": [str(study.path)],
        "heads": list(arms),
        "settings": settings_table(list(arms.values())),
        "versions": versions([table(study.state, "identity", "code")]),
        "data_reports": [(f"{first.label} (one of the runs)", data_lines(first.data))] if first else [],
        "unfinished": [],
        "curves": curves,
        "curves_note": note,
        "loss_quantities": loss_quantities(study.runs),
        "without_log": [],
        "signs": list(_study_signs(study)),
        "no_signs": [],
        "demo": [],
    }


def settings_table(settings: Sequence[Mapping[str, Any]]) -> tuple[list[Row], list[Row]]:
    """Settings that differ or were changed from their defaults, and all others; `UNREAD` where a run does not read one.

    Names of the runs' own folders, and options that decide no number of a run, are never said to differ.
    """
    known = {name: one for dtype in _DATACLASSES for name, one in options_of(dtype).items()}
    idle = [_idle(one) for one in settings]
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


def _idle(settings: Mapping[str, Any]) -> set[str]:
    """The options that a run with these settings does not read."""
    found = {*not_read(str(settings["objective"]))} if "objective" in settings else set()
    method = JEPAOptions(**{name: settings[name] for name in options_of(JEPAOptions) if name in settings})
    return found | {one.name for one in unread_options(method, options_of(JEPAOptions))}


def plain(value: Any) -> str:
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
    """Versions by package."""
    rows = [(name, [plain(one[name]) if name in one else "" for one in records]) for name in _VERSIONS]
    return [(name, cells, len(set(cells)) > 1) for name, cells in rows if any(cells)]


def data_lines(data: Mapping[str, Any]) -> list[str]:
    """A data report (``data_report.json``) as training has printed it."""
    lines = []
    for split, record in data.items():
        try:
            found = DataReport.from_dict({"source": "", **table(record)}).lines()
        except (TypeError, ValueError, KeyError, AttributeError):  # of another version
            found = [f"{split}: the data report cannot be read"]
        lines += [f"{split}: {found[0]}", *found[1:]]
    return lines


def loss_quantities(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """(key, title) of the losses, of the regularizer, and of whatever the evaluations while training have scored."""
    keys = dict.fromkeys(key for run in runs for entry in run.history for key in entry)
    own = {f"eval_{key}" for key, _ in (*LOSSES, *SIGNS)} | {"eval_loss", "eval_num_pairs", "eval_regularizer"}
    scored = [key for key in keys if key.startswith("eval_") and key not in own]
    scored = [key for key in scored if not key.endswith(("_runtime", "_per_second"))]
    titles = [(key, f"{key.removeprefix('eval_')} of the evaluations while training") for key in scored]
    return [*LOSSES, *([("regularizer", "regularizer")] if "regularizer" in keys else []), *titles]


@dataclass(frozen=True)
class LoggedSigns:
    """What a log says of the targets.

    Attributes:
        rows: (key, first value, last value).
        step: of the last entry.
        texts: the signs of collapse in the last entry.
        collapsed: whether they amount to collapse, as a low rank does by itself.
        by_design: whether the targets are one vector because the run is a control.
    """

    rows: list[tuple[str, float, float]]
    step: float
    texts: list[str]
    collapsed: bool
    by_design: bool


def logged_signs(run: Run) -> LoggedSigns | None:
    """The signs of collapse in a log, None where no targets were logged.

    The log knows the targets of training batches alone. Their spread gives the mean cosine of two targets:
    ``target_std ** 2 = 1 - mean cosine`` for unit-length states.
    """
    logged = {key: points for key, _ in SIGNS if (points := history_points(run.history, key))}
    if not logged:
        return None
    last = {key: points[-1][1] for key, points in logged.items()}
    pairs = history_points(run.history, "num_pairs")
    by_design = run.settings.get("control") == "random"
    rank, cosine = last.get("effective_rank", LOW_RANK), 1 - last.get("target_std", 1.0) ** 2
    low = not by_design and rank < LOW_RANK and (not pairs or pairs[-1][1] >= RANK_ROWS)
    texts = [f"target states have an effective rank of {rank:.2f} (below {LOW_RANK})"] if low else []
    if cosine >= CONE_COSINE and not by_design:
        texts.append(
            f"target states point in one direction: two targets have a cosine of {cosine:.4f} on average, from target_std "
            f"{last['target_std']:.3f} (from {CONE_COSINE}; plain models .76 to .96)"
        )
    rows = [(key, points[0][1], points[-1][1]) for key, points in logged.items()]
    return LoggedSigns(rows, max(points[-1][0] for points in logged.values()), texts, low, by_design)


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
        text = "-" if value is None else f"{100 * value:.1f} %"
        bar = [round(end, 1) for end in shares] if len(shares) == 3 else None
        return [text, ends, f"{found.get('correct')} of {found.get('n')} right"], bar
    text = "-" if value is None else f"{value:.4f}"
    ends = "" if low is None or high is None else f"[{low:.4f}, {high:.4f}]"
    if "perplexity" in found:  # the interval is that of the rows' mean
        mean = number(found, "row_mean")
        of = f"nats per token; mean of {found.get('n')} rows {'-' if mean is None else f'{mean:.4f}'} {ends}"
        return [text, "", of.strip()], None
    return [text, ends, f"mean of {found.get('n')} answers"], None


def _names(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.evaluations))


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
    letters = ["".join(_letter(found.get(key)) for key in keys) for found in by_question]
    rows = []
    for place in chosen(letters, most):
        given = [found.get(keys[place]) for found in by_question]
        known = next(one for one in given if one is not None)
        reference = known.gt_answer if known.gt_answer is not None else known.ground_truth
        row = {"place": place, "index": known.index, "question": cut(known.question, longest)}
        row |= {"reference": cut(reference or "", longest), "answers": [one and _answer(one, longest) for one in given]}
        rows.append(row)
    models = [
        {"label": label, "metric": next(iter(found[0].scores), ""), "letters": line}
        for (label, found), line in zip(answers.items(), letters, strict=True)
    ]
    return {"name": name, "models": models, "rows": rows}


def _answer(one: Prediction, longest: int) -> dict[str, str]:
    text, found = cut(one.generated_response, longest), cut(one.gen_answer or "", longest)
    return {"text": text, "found": found, "stop": str(one.stop_reason or "")}


def _letter(one: Prediction | None) -> str:
    return "-" if one is None else "u" if one.correct is None else "r" if one.correct else "w"


def chosen(letters: Sequence[str], most: int) -> list[int]:
    """Positions of at most `most` questions: of every pattern of right and wrong the first ones, in turns."""
    waiting = defaultdict[tuple[str, ...], deque[int]](deque)
    for place, pattern in enumerate(zip(*letters, strict=True)):
        waiting[pattern].append(place)
    turns = sorted((turn, places[0], place) for places in waiting.values() for turn, place in enumerate(places))
    return sorted(place for *_, place in turns[:most])


def cut(text: str, longest: int) -> str:
    """A text, with its middle left out where it is longer."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters are left out here ...]\n{text[-half:]}"


def cost_rows(runs: Sequence[Run]) -> Iterator[list[str]]:
    """Of each run: steps, training time, examples and tokens per second, FLOPs, time of generating answers."""
    for run in runs:
        steps = [step for entry in run.history if (step := number(entry, "step")) is not None]
        speeds = [speed for _, speed in history_points(run.history, "tokens_per_second")]
        logged = [
            number(value) or 0 for entry in run.history for key, value in entry.items() if key.startswith("flops_")
        ]
        spent = [number(one.result, "generation", "seconds") or 0 for one in run.evaluations.values()]
        yield [
            run.label,
            f"{max(steps):,.0f}" if steps else "-",
            duration(number(run.metrics, "train_runtime")),
            _speed(number(run.metrics, "train_samples_per_second")),
            _speed(sum(speeds) / len(speeds) if speeds else None),
            scaled(number(run.metrics, "total_flos") or sum(logged) or None),
            duration(sum(spent) or None),
        ]


def duration(seconds: float | None) -> str:
    """``42.1 s``, ``12 min 5 s``, ``3 h 20 min``."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def _speed(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _study_signs(study: Study) -> Iterator[tuple[str, LoggedSigns]]:
    """Of every arm the signs of one run, one with signs where there is any, and how many runs have them."""
    for arm, runs in studies.arms_of(study).items():
        logged = [one for run in runs if (one := logged_signs(run))]
        shown = sorted((one for one in logged if one.texts), key=lambda one: not one.collapsed)
        if logged:
            yield f"{arm} ({len(shown)} of {len(logged)} runs)" if shown else arm, (shown or logged)[0]


def _study_cost(study: Study) -> str:
    """What all runs have cost together."""
    trained = [run.stages["trained"] for run in study.runs if "trained" in run.stages]
    seconds = [value for one in trained if (value := number(one, "train_seconds")) is not None]
    flops = [value for one in trained if (value := number(one, "flops")) is not None]
    spent = f"{duration(sum(seconds) if seconds else None)} and {scaled(sum(flops) if flops else None)} FLOPs"
    return f"{len(seconds)} trainings: {spent} in all; means of each arm are in the tables."


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
