"""An evaluation of the same questions that is complete already, by other metrics: its answers are scored again."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepjepa.config.option import options_of
from stepjepa.evaluation.metrics import MODEL_METRICS, model_metrics
from stepjepa.evaluation.nll import AnswerLoss
from stepjepa.evaluation.options import EvaluateOptions
from stepjepa.evaluation.predictions import REFUSED, STOPPED, read_predictions
from stepjepa.generation import Reply
from stepjepa.generation.options import SAMPLING
from stepjepa.generation.store import Paths, Record
from stepjepa.utils.files import read_object


def metrics_with_earlier(asked: list[str], record: Path) -> list[str]:
    """The metrics that are asked for, then those of the complete evaluation in `record`, which stay in its files."""
    scoring = read_object(record).get("scoring")
    earlier = scoring.get("metric") if isinstance(scoring, dict) else None
    return list(dict.fromkeys([*asked, *(earlier if isinstance(earlier, list) else [])]))


def comparable_identity(record: Record, options: EvaluateOptions) -> Record:
    """What an earlier evaluation's answers depend on; options that decided none of them are as they are now.

    Raises:
        KeyError, TypeError: it is no record of an evaluation.
    """
    known, metrics = dict(record["identity"]), record["scoring"]["metric"] or []
    idle: list[str] = []
    losses = model_metrics(metrics)
    if metrics and not losses:
        idle.append("max_length")
    if metrics and len(losses) == len(metrics):
        idle += [name for name, one in options_of(EvaluateOptions).items() if one.group == SAMPLING and name in known]
    return known | {name: getattr(options, name) for name in idle}


@dataclass
class EarlierAnswers:
    """What is stored of a complete evaluation by other metrics.

    Attributes:
        metrics: their results.
        seconds: spent on generating.
        replies: by the number of the request.
        losses: of the reference answers, by the index of the question.
    """

    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0
    replies: dict[int, Reply] = field(default_factory=dict)
    losses: dict[int, AnswerLoss] = field(default_factory=dict)

    @classmethod
    def read(cls, record: Record, paths: Paths, samples: int) -> EarlierAnswers:
        """The answers in the files of an output, `samples` to each question, as far as they are there.

        Raises:
            DataError: a file cannot be read.
        """
        found = cls(record["metrics"], float(record["generation"].get("seconds") or 0.0))
        for path in paths.results:
            for one in read_predictions(path, every_sample=True) if path.is_file() else ():
                if one.answer_nll is not None and one.answer_tokens and one.end_tokens is not None:
                    total = one.answer_nll * one.answer_tokens
                    end_total = (one.end_nll or 0.0) * one.end_tokens
                    found.losses[one.index] = AnswerLoss(one.index, total, one.answer_tokens, end_total, one.end_tokens)
                if path == paths.results[0]:
                    number = one.index * samples + (one.sample or 1) - 1
                    refused = one.note or REFUSED if one.stop_reason == REFUSED else None
                    found.replies[number] = Reply(
                        number,
                        one.generated_response,
                        one.stop_reason == STOPPED,
                        new_tokens=one.tokens or 0,
                        refused=refused,
                    )
        if not found.losses:  # version 0.2 did not keep the end of turn apart: the likelihoods are computed again
            for name in MODEL_METRICS:
                found.metrics.pop(name, None)
        return found
