"""Predictions: a line for each question that was asked, as the evaluation writes it and the analysis reads it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stepjepa.data.chat import RowError
from stepjepa.data.files import file_rows
from stepjepa.errors import DataError
from stepjepa.evaluation.teachers.files import json_line, replace
from stepjepa.utils.files import json_bytes, read_json

STOPPED, CUT, REFUSED = "stop", "length", "refused"
_LARGEST = 1e100
_OPTIONAL = ("note", "answer_nll", "answer_tokens")


@dataclass
class Prediction:
    """What a model said to one question, and what the metrics say to that.

    Attributes:
        index: the row's number in the data, from 0; rows that cannot be asked count too.
        question: the last message of the user.
        ground_truth: the column `ground_truth`, else the text of the reference answer.
        generated_response: what the model wrote.
        gt_answer, gen_answer: the answers as the first metric read them from the reference and from the response.
        correct: whether the first metric says that the response is right; None where that is no yes-or-no metric.
        stop_reason: ``stop`` (the model ended by itself), ``length`` (cut off), ``refused`` (no room for the prompt).
        tokens: new tokens, the one that ends the response included.
        scores: metric -> score.
        note: why the first metric's score is not 1.
        answer_nll: nats a token of the reference answer, where that was computed; of `answer_tokens` tokens.
    """

    index: int
    question: str
    ground_truth: str
    generated_response: str
    gt_answer: str | None
    gen_answer: str | None
    correct: bool | None
    stop_reason: str | None
    tokens: int | None
    scores: dict[str, float] = field(default_factory=dict)
    note: str | None = None
    answer_nll: float | None = None
    answer_tokens: int | None = None

    def record(self) -> dict[str, Any]:
        """As it is written."""
        values = asdict(self)
        return {name: value for name, value in values.items() if value is not None or name not in _OPTIONAL}


def write_records(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write records as JSONL, or to a ``.json`` file as one array; whole or not at all.

    Raises:
        DataError: the file cannot be written.
    """
    if path.suffix == ".json":
        replace(path, [json_bytes(list(records), indent=1), b"\n"])
    else:
        replace(path, map(json_line, records))


def read_predictions(path: Path) -> list[Prediction]:
    """Predictions of a file of JSON lines, or of one JSON array. Only ``question`` and ``generated_response`` must be there;
    `index` is the place in the file then.

    Raises:
        DataError: the file cannot be read, or a row is no prediction.
    """
    if not path.is_file():
        raise DataError(f"{path}: {'is a folder; give the predictions in it' if path.is_dir() else 'no such file'}")
    found: list[Prediction] = []
    for place, row in _rows(path):
        try:
            found.append(_prediction(row, len(found)))
        except RowError as error:
            raise DataError(f"{path} {place}: {error}") from None
    if not found:
        raise DataError(f"{path}: holds no predictions")
    return found


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    with open(path, "rb") as file:
        is_array = file.read(64).lstrip().startswith(b"[")
    if not is_array:
        for number, row in file_rows(path):
            yield f"line {number}", row
        return
    try:
        rows = read_json(path)
    except ValueError as error:
        raise DataError(f"{path}: broken JSON ({error})") from None
    for number, row in enumerate(rows):
        yield f"entry {number}", row


def _prediction(row: Any, place: int) -> Prediction:
    if not isinstance(row, dict):
        raise RowError("not_an_object", "is no prediction; expected an object as stepjepa evaluate writes it")
    for name in ("question", "generated_response"):
        if not isinstance(row.get(name), str):
            raise RowError("no_known_columns", f"is no prediction: it has no text {name!r}")
    known = {name: row[name] for name in Prediction.__dataclass_fields__ if name in row}
    for name, kind in (("index", int), ("tokens", (int, type(None))), ("correct", (bool, type(None)))):
        if name in known and (not isinstance(known[name], kind) or (name != "correct" and not _is_number(known[name]))):
            raise RowError("no_known_columns", f"is no prediction: {name} is {known[name]!r}")
    scores = known.get("scores", {})
    if not isinstance(scores, dict) or not all(map(_is_number, scores.values())):
        raise RowError("no_known_columns", f"is no prediction: scores is {scores!r}, not the number of each metric")
    known["scores"] = {
        name: math.nan if value is None else value for name, value in scores.items()
    }  # null as NaN is written
    for name in ("gt_answer", "gen_answer", "ground_truth"):
        if known.get(name) is not None:
            known[name] = str(known[name])
    empty = {"ground_truth": "", "gt_answer": None, "gen_answer": None, "correct": None, "stop_reason": None}
    return Prediction(**{"index": place, "tokens": None, **empty, **known})


def _is_number(value: Any) -> bool:
    """Whether it is a number that sums and squares can be made of; NaN is one, and so is none at all."""
    return value is None or (type(value) in (int, float) and not abs(value) > _LARGEST)
