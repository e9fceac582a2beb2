"""Metrics of generated answers: one interface, chosen by name.

    with make_metric("gsm8k") as metric:
        judgement = metric.score(generated, row)  # score, gold, answer, note

The score depends only on the generated text and the row. A user's function can be a metric too.
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
