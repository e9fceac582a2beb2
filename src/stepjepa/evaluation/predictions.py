"""Predictions: a line for each question that was asked, as the evaluation writes it and the comparison reads it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from stepjepa.data.sources import file_rows
from stepjepa.errors import DataError
from stepjepa.generation import Reply
from stepjepa.generation.store import json_line
from stepjepa.utils.files import json_bytes, read_json

STOPPED, CUT, REFUSED = "stop", "length", "refused"
_LARGEST = 1e100
_OPTIONAL = ("note", "answer_nll", "answer_tokens")


@dataclass
class Prediction:
    """What a model answered to one question, and what the metrics make of it.

    Attributes:
        index: the row's number in the data, from 0; rows that cannot be asked count too.
        question: the last message of the user.
        ground_truth: the column `ground_truth`, else the text of the reference answer.
        generated_response: what the model wrote.
        gt_answer, gen_answer: the answers as the first metric read them from the reference and from the response.
        correct: whether the first metric calls the response right; None where that is no yes-or-no metric.
        stop_reason: ``stop`` (the model ended by itself), ``length`` (cut off), ``refused`` (no room for the prompt).
        tokens: new tokens, the one that ends the response included.
        scores: metric -> score.
        note: why the first metric's score is not 1.
        answer_nll: nats per token of the reference answer, where that was computed; of `answer_tokens` tokens.
    """

    index: int
    question: str
    ground_truth: str = ""
    generated_response: str = ""
    gt_answer: str | None = None
    gen_answer: str | None = None
    correct: bool | None = None
    stop_reason: str | None = None
    tokens: int | None = None
    scores: dict[str, float] = field(default_factory=dict)
    note: str | None = None
    answer_nll: float | None = None
    answer_tokens: int | None = None

    def record(self) -> dict[str, Any]:
        """As it is written."""
        values = asdict(self)
        return {name: value for name, value in values.items() if value is not None or name not in _OPTIONAL}


def stop_reason(reply: Reply) -> str:
    """How a response ended, as `Prediction.stop_reason` has it."""
    return REFUSED if reply.refused is not None else STOPPED if reply.stopped else CUT


def record_lines(path: Path, records: Iterable[dict[str, Any]]) -> Iterable[bytes]:
    """Records as the contents of a file: JSONL, or one array for a ``.json`` file."""
    return [json_bytes(list(records), indent=1), b"\n"] if path.suffix == ".json" else map(json_line, records)


def read_predictions(path: Path) -> list[Prediction]:
    """Predictions of a file of JSON lines, or of one JSON array. Only ``question`` and ``generated_response`` must be there;
    `index` is then the position in the file.

    Raises:
        DataError: the file cannot be read, or a row is no prediction.
    """
    if not path.is_file():
        raise DataError(f"{path}: {'is a folder; give the predictions in it' if path.is_dir() else 'no such file'}")
    with open(path, "rb") as file:
        is_array = file.read(64).lstrip().startswith(b"[")
    try:
        rows: Iterable[tuple[int, Any]] = enumerate(read_json(path)) if is_array else file_rows(path)
    except ValueError as error:
        raise DataError(f"{path}: broken JSON ({error})") from None
    found: list[Prediction] = []
    for number, row in rows:
        trouble = _trouble(row)
        if trouble:
            raise DataError(f"{path} {'entry' if is_array else 'line'} {number}: is no prediction: {trouble}")
        known: dict[str, Any] = {one.name: row[one.name] for one in fields(Prediction) if row.get(one.name) is not None}
        known |= {name: str(known[name]) for name in ("gt_answer", "gen_answer", "ground_truth") if name in known}
        # NaN is written as null.
        scores = {name: math.nan if value is None else value for name, value in known.get("scores", {}).items()}
        found.append(Prediction(**{"index": len(found), **known, "scores": scores}))
    if not found:
        raise DataError(f"{path}: holds no predictions")
    return found


def _trouble(row: Any) -> str:
    """Why a row is no prediction; empty where it is one."""
    if not isinstance(row, dict):
        return "expected an object as stepjepa evaluate writes it"
    for name in ("question", "generated_response"):
        if not isinstance(row.get(name), str):
            return f"it has no text {name!r}"
    for name in ("index", "tokens"):
        if isinstance(row.get(name), float) or not _is_number(row.get(name)):
            return f"{name} is {row[name]!r}"
    if not isinstance(row.get("correct"), (bool, type(None))):
        return f"correct is {row['correct']!r}"
    scores = row.get("scores", {})
    if not isinstance(scores, dict) or not all(map(_is_number, scores.values())):
        return f"scores is {scores!r}, not the number of each metric"
    return ""


def _is_number(value: Any) -> bool:
    """Whether it is a number that sums and squares can be made of; NaN is one, and so is none at all."""
    return value is None or (type(value) in (int, float) and not abs(value) > _LARGEST)
