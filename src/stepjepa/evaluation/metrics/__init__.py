"""Metrics of generated answers: one interface, chosen by name.

    with make_metric("gsm8k") as metric:
        verdict = metric.score(generated, row)  # score, gold, answer, note

Each is a pure function of the generated text and the row; none evaluates either as Python.
"""

from stepjepa.evaluation.metrics.base import Metric, Verdict
from stepjepa.evaluation.metrics.registry import METRICS, MODEL_METRICS, make_metric

__all__ = ["METRICS", "MODEL_METRICS", "Metric", "Verdict", "make_metric"]
