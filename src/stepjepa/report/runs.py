"""What runs were, how they went and what they cost, as the page shows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stepjepa.data.report import DataReport
from stepjepa.report.chart import Chart, Point, history_points, make_chart
from stepjepa.report.files import mapping, number
from stepjepa.report.reading import Run
from stepjepa.study.table import scaled
from stepjepa.training.options import not_read

# Settings that are always shown; the others are folded, but for those that differ between runs.
MAIN = (
    "model_name train_file eval_file objective forward predictors jepa_loss lbd gamma target_grad target_encoder "
    "regularizer control step_splitter step_pairs jepa_ratio labels lora learning_rate lr_scheduler_type "
    "num_train_epochs max_steps per_device_train_batch_size gradient_accumulation_steps max_length seed"
).split()
UNREAD = "-"
# Places and names, which differ between all runs and say nothing.
_PLACES = {"output_dir", "logging_dir", "run_name", "overwrite_output_dir", "resume_from_checkpoint"}
# What training logs, with the words for it; the first two are the losses.
LOSSES = (("lm_loss", "LM loss (nats a labelled token)"), ("jepa_loss", "JEPA loss"))
SIGNS = (
    ("cosine_similarity", "cosine of source and target"),
    ("target_std", "spread of the targets (target_std)"),
    ("effective_rank", "effective rank of the targets"),
)
_KNOWN = {key for key, _ in (*LOSSES, *SIGNS)} | {"loss", "num_pairs", "regularizer", "runtime"}


def settings_table(settings: Sequence[dict[str, Any]]) -> dict[str, list[tuple[str, list[str], bool]]]:
    """Settings by row: those to be shown (``main``) and the others (``rest``), each a name, a cell for each run (`UNREAD`
    where its objective does not read the option), and whether the cells differ."""
    unread = [not_read(str(one["objective"])) if "objective" in one else frozenset() for one in settings]
    names = [*MAIN, *sorted({name for one in settings for name in one} - set(MAIN) - _PLACES)]
    shown: dict[str, list[tuple[str, list[str], bool]]] = {"main": [], "rest": []}
    for name in names:
        cells = [
            UNREAD if name in idle else plain(one[name]) if name in one else ""
            for one, idle in zip(settings, unread, strict=True)
        ]
        differs = len({*cells} - {UNREAD}) > 1
        read = [cell for cell in cells if cell != UNREAD]
        if any(read):
            place, row = ("main", cells) if differs or name in MAIN else ("rest", read)
            shown[place].append((name, row, differs))
    return shown


def plain(value: Any) -> str:
    """A setting in a cell."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return ", ".join(f"{name}={plain(one)}" for name, one in value.items()) or "none"
    if isinstance(value, list):
        return ("; " if any(isinstance(one, dict) for one in value) else ", ").join(map(plain, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def versions(records: Sequence[dict[str, Any]]) -> list[tuple[str, list[str], bool]]:
    """Versions by package, a cell for each run, and whether they differ."""
    names = ("stepjepa", "torch", "transformers", "peft", "python", "source", "processes")
    rows = [(name, [plain(one[name]) if name in one else "" for one in records]) for name in names]
    return [(name, cells, len(set(cells)) > 1) for name, cells in rows if any(cells)]


def data_lines(run: Run) -> list[str]:
    """The data report in words, as training has printed it."""
    lines = []
    for split, record in run.data.items():
        try:
            found = DataReport.from_dict({"source": "", **mapping(record)}).lines()
        except (TypeError, ValueError, KeyError, AttributeError):  # of another version
            found = [f"{split}: the data report cannot be read"]
        lines += [f"{split}: {found[0]}", *found[1:]]
    return lines


def charts(runs: Sequence[tuple[str, Sequence[dict[str, Any]]]], quantities: Iterable[tuple[str, str]]) -> list[Chart]:
    """A chart for each quantity that was logged, evaluations as ``eval_...`` in the same one.

    Args:
        runs: (name, log).
        quantities: (key, title).
    """
    return charts_of_points(
        [(name, lambda key, log=log: history_points(log, key)) for name, log in runs],  # type: ignore[misc]
        quantities,
    )


def charts_of_points(runs: Sequence[tuple[str, Any]], quantities: Iterable[tuple[str, str]]) -> list[Chart]:
    """As `charts`, with a function from a key to points in place of the log."""
    made = []
    for key, title in quantities:
        series: list[tuple[int, str, str, list[Point]]] = []
        for place, (name, points_of) in enumerate(runs):
            if not key.startswith("eval_"):
                series.append((place, name, "training", points_of(key)))
            series.append((place, name, "evaluation", points_of(key if key.startswith("eval_") else f"eval_{key}")))
        made.append(make_chart(key, title, series, logarithmic=key.endswith("lm_loss")))
    return [chart for chart in made if chart is not None]


def loss_quantities(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The losses, the regulariser where there is one, and whatever the evaluations of training have scored."""
    keys = dict.fromkeys(key for run in runs for entry in run.history for key in entry)
    scored = [
        (key, f"{key.removeprefix('eval_')} of the evaluations while training")
        for key in keys
        if key.startswith("eval_") and not any(key.removeprefix("eval_") == one for one in _KNOWN)
        and not key.endswith(("_runtime", "_per_second"))
    ]  # fmt: skip
    more = [("regularizer", "regulariser")] if "regularizer" in keys else []
    return [*LOSSES, *more, *scored]


def cost_rows(runs: Sequence[Run]) -> list[dict[str, str]]:
    """What training and evaluating each run took."""
    rows = []
    for run in runs:
        steps = [step for entry in run.history if (step := number(entry.get("step"))) is not None]
        speeds = [speed for _, speed in history_points(run.history, "tokens_per_second")]
        seconds = [number(mapping(one.result.get("generation")).get("seconds")) for one in run.evaluations.values()]
        spent = [value for value in seconds if value is not None]
        rows.append(
            {
                "run": run.label,
                "steps": f"{max(steps):,.0f}" if steps else "-",
                "time": duration(number(run.metrics.get("train_runtime"))),
                "examples": per_second(number(run.metrics.get("train_samples_per_second"))),
                "tokens": per_second(sum(speeds) / len(speeds) if speeds else None),
                "flops": scaled(number(run.metrics.get("total_flos")) or logged_flops(run.history)),
                "generating": duration(sum(spent) if spent else None),
            }
        )
    return rows


def logged_flops(history: Iterable[dict[str, Any]]) -> float | None:
    """The sum of the FLOPs of all kinds in the log, None where they were not counted."""
    found = [number(value) for entry in history for key, value in entry.items() if key.startswith("flops_")]
    return sum(value for value in found if value is not None) or None


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


def per_second(value: float | None) -> str:
    """A speed, without false digits."""
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
