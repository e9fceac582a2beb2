"""Metrics of generated answers: one interface, chosen by name.

    with make_metric("gsm8k") as metric:
        judgement = metric.score(generated, row)  # score, gold, answer, note

Each is a function of the generated text and the row. A function of the user's own serves as one too.
"""

from stepjepa.evaluation.metrics.base import (
    CONTENT_NLL,
    END_NLL,
    METRICS,
    MODEL_METRICS,
    NLL,
    OPTIONS,
    Judgement,
    Metric,
    make_metric,
    make_metrics,
    metric_class,
    model_metrics,
    verdict,
)

__all__ = [
    "CONTENT_NLL",
    "END_NLL",
    "METRICS",
    "MODEL_METRICS",
    "NLL",
    "OPTIONS",
    "Judgement",
    "Metric",
    "make_metric",
    "make_metrics",
    "metric_class",
    "model_metrics",
    "verdict",
]
