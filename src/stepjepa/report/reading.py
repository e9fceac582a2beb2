"""What runs, studies, demos and analyses have left in their folders.

Old and unfinished folders lack some of the files, and a broken file must not cost the rest: it is left out, and named.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from stepjepa.analysis.geometry import CollapseSign, collapsed
from stepjepa.analysis.plots import METHOD_TITLES, TITLES
from stepjepa.config.yaml_file import parse_tree
from stepjepa.data.report import DataReport
from stepjepa.errors import ConfigError
from stepjepa.evaluation.metrics import NLL
from stepjepa.training.run_folder import METRICS, RunFolder
from stepjepa.utils.files import digest, model_parts, parse_json
from stepjepa.utils.text import labels_of, written

DEMO = "demo's held-out problems"
STALE = " (stale)"  # behind the name of an evaluation
_RUN_FILES = ("run.json", "resolved.yaml", METRICS, "data_report.json", "trainer_state.json")
T = TypeVar("T")
_STAGES = ("trained", "scored-test")
_PICTURES = 2_000_000  # bytes of all pictures of a page
# Numbers of ``stepjepa analyze`` in the table.
_GEOMETRY = {
    "pairs.aligned_mean": ".4f",
    "pairs.shuffled_mean": ".4f",
    "pairs.d_prime": ".2f",
    "pairs.retrieval_at_1": ".1%",
    "source.effective_rank": ".1f",
    "target.effective_rank": ".1f",
}


def table(value: object, *keys: str) -> dict[str, Any]:
    """The object at a path of keys, an empty one for anything else."""
    found = _at(value, *keys)
    return found if isinstance(found, dict) else {}


def entries(value: object, *keys: str) -> list[Any]:
    """The list at a path of keys, an empty one for anything else."""
    found = _at(value, *keys)
    return found if isinstance(found, list) else []


def number(value: object, *keys: str) -> float | None:
    """The finite number at a path of keys, None for anything else."""
    found = _at(value, *keys)
    fits = isinstance(found, (int, float)) and not isinstance(found, bool) and math.isfinite(found)
    return found if fits else None


def _at(value: object, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


class Reader:
    """Reads files.

    Attributes:
        problems: a sentence for every file that is there and is left out.
        stale: a sentence for every evaluation that is not of the present model.
        room: bytes that are left for pictures.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.stale: list[str] = []
        self.room = _PICTURES

    def read(self, path: Path, parse: Callable[[bytes], T]) -> T | None:
        """What `parse` makes of a file's content; None where there is no file, or no good one."""
        try:
            return parse(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError, ConfigError) as error:
            reason = " ".join(str(getattr(error, "strerror", None) or error).split())
            self.leave_out(path, f"cannot be read ({reason}), and is left out")
            return None

    def object(self, path: Path, parse: Callable[[bytes], object] = parse_json) -> dict[str, Any]:
        """The object in a file of JSON, or of what `parse` reads; empty where there is none."""
        found = self.read(path, parse)
        if found is not None and not isinstance(found, dict):
            self.leave_out(path, "holds no object, and is left out")
        return table(found)

    def picture(self, path: Path, title: str) -> dict[str, str] | None:
        """A picture's title and its address, which is its data; None where it cannot be read or there is no room."""
        content = self.read(path, bytes)
        if content is None:
            return None
        if len(content) > self.room:
            self.leave_out(path, "is left out, so that the page stays small")
            return None
        self.room -= len(content)
        kind = "svg+xml" if path.suffix == ".svg" else "png"
        return {"title": title, "source": f"data:image/{kind};base64,{base64.b64encode(content).decode()}"}

    def leave_out(self, path: Path, why: str) -> None:
        """Name a file that is left out, once."""
        problem = f"{path}: {why}"
        if problem not in self.problems:
            self.problems.append(problem)


@dataclass
class Evaluation:
    """What ``stepjepa evaluate`` has left, or what a demo has measured.

    Attributes:
        result: its ``metrics.json``; empty while it is unfinished.
        predictions: the file of answers, None where there is none.
        likelihoods: that of the reference answers, where nothing was generated.
        verdicts: of a demo, whether each answer was right, in the order of its problems.
    """

    result: dict[str, Any]
    predictions: Path | None = None
    likelihoods: Path | None = None
    verdicts: list[bool] = field(default_factory=list)


@dataclass
class Run:
    """A training run's records; each is empty where its file is missing.

    Attributes:
        label: what it is called on the page.
        record: ``run.json``.
        settings: those of ``resolved.yaml``, and over them those of ``run.json``, which came of them.
        data: ``data_report.json``.
        metrics: of ``metrics.json``, the last values.
        history: the Trainer's log; a checkpoint's where the run is unfinished.
        evaluations: by name.
        demo: what a demo has measured on its held-out problems.
        stages: of a study's run, the records of the stages that are done.
    """

    label: str
    path: Path
    record: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    unfinished: bool = True
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    demo: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class Study:
    """A study's records.

    Attributes:
        tables: ``table.md``; empty until the study has ended.
        verdicts: of ``table.json``, lines.
        state: ``state.json``.
        figures: ``study*.svg`` or ``.png``.
    """

    path: Path
    tables: str
    verdicts: list[str]
    state: dict[str, Any]
    figures: list[Path]

    @property
    def arms(self) -> dict[str, dict[str, Any]]:
        """The training options of every arm of every block."""
        return {
            f"{block}/{arm}" if block else arm: table(settings)
            for block, about in table(self.state, "identity", "blocks").items()
            for arm, settings in table(about, "arms").items()
        }


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


def arm_runs(study: Study, runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Each arm (with its tuned values) and its runs that have logged something, in the study's order."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if run.history:
            groups.setdefault(run.label.rpartition("/")[0] or run.label, []).append(run)
    order = list(study.arms)
    known = {name: order.index(base) for name in groups for base in (name, name.rpartition("/")[0]) if base in order}
    return {name: groups[name] for name in sorted(groups, key=lambda name: known.get(name, len(order)))}


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


@dataclass
class Found:
    """All that a report is about: runs (of a study one for each folder under ``runs/``, which is its label), and folders of
    ``stepjepa analyze``."""

    runs: list[Run]
    study: Study | None
    geometry: list[Path]
    reader: Reader


def read_folders(names: Sequence[Path], geometry: Sequence[Path] = ()) -> Found:
    """Read whatever the folders hold.

    Raises:
        ConfigError: a folder is missing, given twice, or holds nothing that can be reported.
    """
    reader, folders, analyses = Reader(), list[Path](), list(geometry)
    for folder in [*names, *geometry]:
        if not folder.is_dir():
            why = "is a file; give the folder of a run" if folder.exists() else "no such folder"
            raise ConfigError(f"{folder}: {why}")
    for folder in geometry:
        if not any((folder / name).is_file() for name in ("numbers.json", "curves.png", "curves.svg")):
            raise ConfigError(f"{folder}: holds nothing that stepjepa analyze has written (numbers.json)")
    for folder in names:
        analyses += [file.parent for file in sorted(folder.glob("*/numbers.json")) if file.parent not in analyses]
        if (folder / "state.json").is_file() and any((folder / name).exists() for name in ("runs", "table.json")):
            if len(names) > 1:
                raise ConfigError(f"{folder}: is a study, which is reported alone; give one study, or several runs")
            figures = {path.stem: path for suffix in ("png", "svg") for path in sorted(folder.glob(f"study*.{suffix}"))}
            verdicts = list(map(str, entries(reader.object(folder / "table.json"), "verdicts")))
            tables, state = reader.read(folder / "table.md", bytes.decode) or "", reader.object(folder / "state.json")
            study = Study(folder, tables, verdicts, state, list(figures.values()))
            return Found(list(_study_runs(folder / "runs", reader)), study, analyses, reader)
        is_run = any((folder / name).is_file() for name in _RUN_FILES) or any(folder.glob("evaluation-*/"))
        is_run = is_run or bool(_checkpoint_logs(folder))
        inner = sorted(file.parent for file in folder.glob("*/run.json"))  # as a demo leaves them
        if not is_run and not inner:
            raise ConfigError(
                f"{folder}: is no folder of a run, a study or a demo (none of {', '.join(_RUN_FILES)}, state.json in it)"
            )
        demo = any("correct" in table(one) for one in reader.object(folder / METRICS).values())
        folders += inner if demo or not is_run else [folder]
    real = [folder.resolve() for folder in folders]
    for twice in (one for index, one in enumerate(real) if one in real[:index]):
        raise ConfigError(f"{twice}: is given twice")
    labels = labels_of(list(map(str, folders)))
    return Found([_run(*one, reader) for one in zip(labels, folders, strict=True)], None, analyses, reader)


def _run(label: str, folder: Path, reader: Reader) -> Run:
    ended, record = reader.object(folder / METRICS), reader.object(folder / "run.json")
    history = _log(ended) if RunFolder(folder).ended else []
    unfinished = not history
    for state in [] if history else [folder / "trainer_state.json", *_checkpoint_logs(folder)]:
        history = history or _log(reader.object(state))
    evaluations, demo = dict(_evaluations(folder, reader)), reader.object(folder / "demo_result.json")
    if entries(demo, "correct"):
        evaluations = {DEMO: _demo_evaluation(demo), **evaluations}
    return Run(
        label,
        folder,
        record,
        {**reader.object(folder / "resolved.yaml", _options), **table(record, "settings")},
        reader.object(folder / "data_report.json"),
        table(ended, "metrics"),
        history,
        unfinished,
        evaluations,
        demo,
    )


def _options(content: bytes) -> object:
    """The values of a file of options."""
    return parse_tree(content.decode("utf-8-sig"), "resolved.yaml").value


def _log(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in entries(record, "log_history") if isinstance(entry, dict)]


def _checkpoint_logs(folder: Path) -> list[Path]:
    """Logs of checkpoints, the newest first."""
    found = folder.glob("checkpoint-*/trainer_state.json")
    return sorted(found, key=lambda path: (len(path.parent.name), path.parent.name), reverse=True)


def _evaluations(folder: Path, reader: Reader) -> Iterator[tuple[str, Evaluation]]:
    """Those in folders of their own, and those whose predictions were given a name (``X.jsonl``, ``X.metrics.json``)."""
    inner = sorted(path for path in folder.iterdir() if path.is_dir() and not (path / "run.json").is_file())
    found = [
        (path.name.removeprefix("evaluation-"), path / METRICS, path / "predictions", path / NLL) for path in inner
    ]
    files = ((file, file.name.removesuffix(".metrics.json")) for file in sorted(folder.glob("*.metrics.json")))
    found += [(stem, file, folder / stem, folder / f"{stem}.{NLL}") for file, stem in files]
    for name, metrics, predictions, likelihoods in found:
        result = reader.object(metrics)
        if "identity" not in result:
            if predictions.with_name(f"{predictions.name}.partial").is_file() and metrics.name == METRICS:
                yield name, Evaluation({})
        else:
            why = _stale(folder, metrics, result)
            if why:
                where = metrics.parent if metrics.name == METRICS else metrics
                reader.stale.append(f"{where}: is of {why}; evaluate the present one again")
            answers, losses = _jsonl_or_json(predictions), _jsonl_or_json(likelihoods)
            yield f"{name}{STALE if why else ''}", Evaluation(result, answers, losses)


def _jsonl_or_json(stem: Path) -> Path | None:
    paths = (stem.with_name(f"{stem.name}.{suffix}") for suffix in ("jsonl", "json"))
    return next((path for path in paths if path.is_file()), None)


def _stale(folder: Path, metrics: Path, result: Mapping[str, Any]) -> str:
    """Which other model than the one in `folder` a result is of; empty where it is of that one."""
    recorded, records = result.get("model_folder"), [(folder / name).is_file() for name in ("run.json", METRICS)]
    if all(records) and not RunFolder(folder).ended:
        return "the model before this run went on"
    weights = list(folder.glob("*.safetensors"))
    if recorded is not None and weights:
        return "" if recorded == digest(model_parts(folder)) else "an earlier model in this folder"
    written = max((file.stat().st_mtime for file in weights), default=0.0)
    return "an earlier model, older than the weights" if written > metrics.stat().st_mtime else ""


def _demo_evaluation(demo: dict[str, Any]) -> Evaluation:
    from stepjepa.evaluation.intervals import share

    verdicts = [bool(one) for one in entries(demo, "correct")]
    right, n, stopped = sum(verdicts), len(verdicts), number(demo, "stopped")
    found = {**share(right, n)._asdict(), "kind": "accuracy", "correct": right, "n": n}
    stop = {} if stopped is None else {"did_not_stop": {"count": round((1 - stopped) * n), "n": n}}
    return Evaluation({"metrics": {"final answer": found}, "generation": stop}, verdicts=verdicts)


def _study_runs(folder: Path, reader: Reader) -> Iterator[Run]:
    for plan in sorted(folder.rglob("plan.json")):
        label, model = plan.parent.relative_to(folder).as_posix(), plan.parent / "model"
        run = _run(label, model, reader) if model.is_dir() else Run(label, model)
        records = {stage: reader.object(plan.parent / f"{stage}.json") for stage in _STAGES}
        run.stages = {stage: record for stage, record in records.items() if record}
        yield run


def geometry_record(folder: Path, reader: Reader) -> dict[str, Any]:
    """An analysis: its numbers in the layer that is shown, its signs of collapse, and its figures, SVG before PNG."""
    numbers, names = reader.object(folder / "numbers.json"), {one.name for one in fields(CollapseSign)}
    layer, rows, signs, chance = numbers.get("layer", -1), [], [], "-"
    for label, model in table(numbers, "models").items():
        shown = table(model, "layers", str(layer))
        rows.append([label, *(written(number(shown, *path.split(".")), form) for path, form in _GEOMETRY.items())])
        chance = written(number(shown, "pairs", "chance_at_1"), ".1%")
        known = [one for one in map(table, entries(model, "collapse")) if set(one) == names]
        found = [CollapseSign(**one) for one in known if isinstance(one["name"], str) and isinstance(one["text"], str)]
        signs.append((label, str(model.get("model")), [sign.text for sign in found], collapsed(found)))
    files = {path.stem: path for suffix in ("png", "svg") for path in sorted(folder.glob(f"*.{suffix}"))}
    titles = {stem: title for stem, title in TITLES.items() if stem in files}
    for stem in sorted(files):
        method, _, label = stem.partition("-")
        if method in METHOD_TITLES and label:
            titles[stem] = f"{METHOD_TITLES[method]} of both views: {label}"
    pictures = [reader.picture(files[stem], title) for stem, title in titles.items()]
    where = "after the final norm" if layer == -1 else f"of layer {layer}"
    about = f"{numbers['n']} pairs of {numbers.get('file')}, states {where}" if "n" in numbers else ""
    figures = [one for one in pictures if one]
    return {"folder": folder, "about": about, "rows": rows, "chance": chance, "signs": signs, "figures": figures}
