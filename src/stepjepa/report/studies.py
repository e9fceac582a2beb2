"""What several runs come to: paired differences, studies, and folders of ``stepjepa analyze``."""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from stepjepa.analysis.collapse import CollapseSign
from stepjepa.analysis.draw import METHOD_TITLES
from stepjepa.analysis.summary import collapsed
from stepjepa.errors import StepJepaError
from stepjepa.report.charts import Point, PointsOf, history_points
from stepjepa.report.reading import Reader, Run, Study, entries, number, table

_MOST_SERIES = 8
_ALL_PAIRS = 5  # runs of which every two are compared; of more each with the first
# Figures of ``stepjepa analyze``, and its numbers in the table.
TITLES = {
    "spectrum": "Singular values of target minus source",
    "cosine": "Cosines of matched and of shuffled pairs",
    "retrieval": "Targets found from their sources, by layer",
    "rank_source": "Effective rank of the sources, by layer",
    "rank_target": "Effective rank of the targets, by layer",
    "steps": "Pairs by step",
    "curves": "Training losses",
}
_GEOMETRY = (
    ("pairs.aligned_mean", ".4f"),
    ("pairs.shuffled_mean", ".4f"),
    ("pairs.d_prime", ".2f"),
    ("pairs.retrieval_at_1", ".1%"),
    ("source.effective_rank", ".1f"),
    ("target.effective_rank", ".1f"),
)


def paired_rows(runs: Sequence[Run]) -> Iterator[tuple[list[str], str]]:
    """Every two models that have answered the same questions: evaluation, a, b, difference, interval, McNemar's p, and how
    many questions both, only a, only b and neither answered right; and why two cannot be compared."""
    from stepjepa.evaluation.compare import compare
    from stepjepa.evaluation.intervals import mcnemar_p, paired_counts, paired_difference

    for name in dict.fromkeys(name for run in runs for name in run.evaluations):
        known = {run.label: run.evaluations[name] for run in runs if name in run.evaluations}
        labels = [label for label, one in known.items() if one.predictions is not None or one.verdicts]
        for a, b in combinations(labels, 2) if len(labels) <= _ALL_PAIRS else ((labels[0], one) for one in labels[1:]):
            one, other = known[a], known[b]
            try:
                if one.predictions is not None and other.predictions is not None:
                    made = compare(one.predictions, other.predictions, show=0)
                    metric, counts = made.a.metric, (made.both, made.only_a, made.only_b, made.neither)
                else:
                    metric, counts = "final answer", paired_counts(one.verdicts, other.verdicts)
            except (StepJepaError, ValueError) as error:
                yield [name, a, b], str(error)
                continue
            value, low, high = (None if end is None else f"{100 * end:+.1f}" for end in paired_difference(*counts))
            ends = "" if low is None or high is None else f"[{low}, {high}]"
            cells = [
                "-" if value is None else f"{value} points",
                ends,
                f"{mcnemar_p(*counts[1:3]):.3g}",
                *map(str, counts),
            ]
            yield [f"{name}, {metric}", a, b, *cells], ""


def parts_of(text: str) -> Iterator[tuple[str, Any]]:
    """The parts of a ``table.md`` in order: a heading, a text, a list of texts, or a table of rows of cells."""
    for part in re.split(r"\n{2,}", text.replace("`", "").strip()):
        lines = part.splitlines()
        if part.startswith("|"):
            rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if not line.startswith("|---")]
            yield "table", [[cell.strip().replace("\\|", "|") for cell in row] for row in rows]
        elif part.startswith("- "):
            yield "list", [line.removeprefix("- ") for line in lines]
        elif part:
            yield "heading" if part.startswith(("#", "**")) else "text", part.lstrip("# ").replace("**", "")


def arm_settings(study: Study) -> dict[str, dict[str, Any]]:
    """The training options of every arm of every block."""
    return {
        f"{block}/{arm}" if block else arm: table(settings)
        for block, about in table(study.state, "identity", "blocks").items()
        for arm, settings in table(about, "arms").items()
    }


def arms_of(study: Study) -> dict[str, list[Run]]:
    """Each arm (with its tuned values) and its runs that have logged something, in the study's order."""
    groups: dict[str, list[Run]] = {}
    for run in study.runs:
        if run.history:
            groups.setdefault(run.label.rpartition("/")[0] or run.label, []).append(run)
    order = list(arm_settings(study))
    known = {name: order.index(base) for name in groups for base in (name, name.rpartition("/")[0]) if base in order}
    return {name: groups[name] for name in sorted(groups, key=lambda name: known.get(name, len(order)))}


def curves(study: Study) -> tuple[list[tuple[str, PointsOf]], str]:
    """(name, key -> points) of at most `_MOST_SERIES` arms, each the mean over its seeds, and a note on that."""
    groups = arms_of(study)
    shown = list(groups)[:_MOST_SERIES]
    counts = ", ".join(f"{name} {len(groups[name])}" for name in shown)
    note = (
        f"Each line is the mean over the seeds of an arm, at the steps that all of them have logged (runs: {counts})."
    )
    if len(groups) > len(shown):
        note += f" Left out, so that lines can be told apart: {', '.join(list(groups)[_MOST_SERIES:])}."
    return [(name, partial(mean_points, groups[name])) for name in shown], note if shown else ""


def mean_points(runs: list[Run], key: str) -> list[Point]:
    """The mean over the runs that have logged `key`, at the steps that all of them have."""
    logs = [dict(points) for run in runs if (points := history_points(run.history, key))]
    steps = sorted(set.intersection(*map(set, logs))) if logs else []
    return [(step, sum(log[step] for log in logs) / len(logs)) for step in steps]


def run_states(study: Study) -> str:
    """How many runs are in which state."""
    counts = Counter(
        "trained and scored" if "scored-test" in run.stages
        else "trained" if "trained" in run.stages
        else "begun" if run.history or run.record
        else "not begun"
        for run in study.runs
    )  # fmt: skip
    return ", ".join(f"{count} {state}" for state, count in counts.items())


class Album:
    """Pictures as data of the page, until there is no room for more."""

    def __init__(self, reader: Reader, room: int = 2_000_000):
        self.reader, self.room = reader, room

    def picture(self, path: Path, title: str) -> dict[str, str] | None:
        """A picture's title and address; None (and a problem) where it cannot be read or there is no room."""
        try:
            content = path.read_bytes()
        except OSError as error:
            self.reader.leave_out(path, f"cannot be read ({error.strerror or error}), and is left out")
            return None
        if len(content) > self.room:
            self.reader.leave_out(path, "is left out, so that the page stays small")
            return None
        self.room -= len(content)
        kind = "svg+xml" if path.suffix == ".svg" else "png"
        return {"title": title, "source": f"data:image/{kind};base64,{base64.b64encode(content).decode()}"}


def geometry_record(folder: Path, album: Album) -> dict[str, Any]:
    """An analysis: its numbers in the layer that is shown, its signs of collapse, and its figures, SVG before PNG."""
    numbers = album.reader.object(folder / "numbers.json")
    layer, rows, signs, chance = numbers.get("layer", -1), [], [], "-"
    for label, model in table(numbers, "models").items():
        shown = table(model, "layers", str(layer))
        cells = [written(number(shown, *path.split(".")), form) for path, form in _GEOMETRY]
        rows.append([label, *cells])
        chance = written(number(shown, "pairs", "chance_at_1"), ".1%")
        found = [CollapseSign(**one) for one in map(table, entries(model, "collapse")) if _is_sign(one)]
        signs.append((label, [sign.text for sign in found], collapsed(found)))
    files = {path.stem: path for suffix in ("png", "svg") for path in sorted(folder.glob(f"*.{suffix}"))}
    pictures = [album.picture(files[stem], title) for stem, title in _titles(files) if stem in files]
    where = "after the final norm" if layer == -1 else f"of layer {layer}"
    about = f"{numbers['n']} pairs of {numbers.get('file')}, states {where}" if "n" in numbers else ""
    figures = [one for one in pictures if one]
    return {"folder": folder, "about": about, "rows": rows, "chance": chance, "signs": signs, "figures": figures}


def _is_sign(record: dict[str, Any]) -> bool:
    texts = all(isinstance(record.get(name), str) for name in ("name", "text"))
    return texts and set(record) == {one.name for one in fields(CollapseSign)}


def _titles(files: Mapping[str, Path]) -> Iterator[tuple[str, str]]:
    """(stem, title) of the figures that ``stepjepa analyze`` writes."""
    yield from TITLES.items()
    for stem in sorted(files):
        method, _, model = stem.partition("-")
        if method in METHOD_TITLES and model:
            yield stem, f"{METHOD_TITLES[method]} of both views: {model}"


def written(value: float | None, form: str) -> str:
    """A number in a form, "-" for none."""
    return "-" if value is None else format(value, form).replace("%", " %")
