"""Predictions: a line for each question that was asked, as the evaluation writes it and the comparison reads it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from stepjepa.data.sources import RowSource
from stepjepa.errors import DataError
from stepjepa.evaluation.metrics import NLL
from stepjepa.generation.output import json_line
from stepjepa.utils.files import json_bytes
from stepjepa.utils.text import one_line

STOPPED, CUT, REFUSED = "stop", "length", "refused"
_LARGEST, _QUOTED = 1e100, 80
_OPTIONAL = ("note", "undecided", "answer_nll", "content_nll", "end_nll", "answer_tokens", "end_tokens", "sample")
_WHOLE = ("index", "tokens", "answer_tokens", "end_tokens")


@dataclass
class Prediction:
    """What a model answered to one question, and what the metrics make of it.

    Attributes:
        index: the row's number in the data, from 0; rows that cannot be asked count too.
        question: the last message of the user.
        sample: number of the answer, from 1, where every question has several.
        ground_truth: the column `ground_truth`, else the text of the reference answer.
        generated_response: what the model wrote.
        gt_answer, gen_answer: the answers as the first metric read them from the reference and from the response.
        correct: whether the first metric calls the response right; None where that is no yes-or-no metric.
        stop_reason: ``stop`` (the model ended by itself), ``length`` (cut off), ``refused`` (no room for the prompt).
        tokens: new tokens, the one that ends the response included.
        scores: metric -> score.
        note: why the first metric's score is not 1.
        undecided: see `Judgement.undecided`, of the first metric.
        answer_nll: nats per token of the reference answer, where that was computed; of `answer_tokens` tokens.
        content_nll, end_nll: the same of its tokens without the end of turn, and of the end of turn (`end_tokens` tokens).
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
    undecided: Literal["unknown", "invalid"] | None = None
    answer_nll: float | None = None
    content_nll: float | None = None
    end_nll: float | None = None
    answer_tokens: int | None = None
    end_tokens: int | None = None
    sample: int | None = None

    def record(self) -> dict[str, Any]:
        """As it is written."""
        values = asdict(self)
        return {name: value for name, value in values.items() if value is not None or name not in _OPTIONAL}


def quoted(text: str | None) -> str:
    """A text in quotation marks, on one short line; none where there is none."""
    return "none" if text is None else repr(one_line(text, _QUOTED))


def record_lines(path: Path, records: Iterable[dict[str, Any]]) -> Iterable[bytes]:
    """Records as the contents of a file: JSONL, or one array for a ``.json`` file."""
    if path.suffix == ".json":
        return [json_bytes(list(records), indent=1), b"\n"]
    return map(json_line, records)


def read_predictions(path: Path, every_sample: bool = False) -> list[Prediction]:
    """Predictions of a file of JSON lines, or of one JSON array, of several to a question the first, or every one.

    Only ``question`` and ``generated_response``, or ``answer_nll``, must be there; `index` is then the position in the file.

    Raises:
        DataError: the file cannot be read, or a row is no prediction.
    """
    if not path.is_file():
        raise DataError(f"{path}: {'is a folder; give the predictions in it' if path.is_dir() else 'no such file'}")
    rows = RowSource(path, any_file=True)
    predictions: list[Prediction] = []
    for number, row in rows:
        problem = _problem_of(row)
        if problem:
            raise DataError(f"{rows.place(number)}: is no prediction: {problem}")
        if every_sample or not isinstance(row.get("sample"), int) or row["sample"] == 1:
            predictions.append(_prediction(row, len(predictions)))
    if not predictions:
        raise DataError(f"{path}: holds no predictions")
    return predictions


def _prediction(row: dict[str, Any], position: int) -> Prediction:
    values: dict[str, Any] = {"index": position}
    for one in fields(Prediction):
        if row.get(one.name) is not None:
            values[one.name] = row[one.name]
    for name in ("gt_answer", "gen_answer", "ground_truth"):
        if name in values:
            values[name] = str(values[name])
    scores = values.get("scores", {})
    values["scores"] = {name: math.nan if score is None else score for name, score in scores.items()}  # written as null
    return Prediction(**values)


def _problem_of(row: Any) -> str:
    """Why a row is no prediction; empty where it is one."""
    if not isinstance(row, dict):
        return "expected an object as stepjepa evaluate writes it"
    answered = "generated_response" in row or NLL not in row
    for name in ("question", "generated_response") if answered else ("question",):
        if not isinstance(row.get(name), str):
            return f"it has no text {name!r}"
    for name in (NLL, *_WHOLE):
        value = row.get(name)
        if not _is_number(value) or (name in _WHOLE and isinstance(value, float)):
            return f"{name} is {value!r}"
    if not isinstance(row.get("correct"), (bool, type(None))):
        return f"correct is {row['correct']!r}"
    scores = row.get("scores", {})
    if not isinstance(scores, dict) or not all(map(_is_number, scores.values())):
        return f"scores is {scores!r}, not the number of each metric"
    return ""


def _is_number(value: Any) -> bool:
    """Whether it is a number that sums and squares can be made of; NaN is one, and so is none at all."""
    return value is None or (type(value) in (int, float) and not abs(value) > _LARGEST)
