"""Metrics of generated answers: one interface, chosen by name.

    with make_metric("gsm8k") as metric:
        judgement = metric.score(generated, row)  # score, gold, answer, note

The score depends only on the generated text and the row. A user's function can be a metric too.
"""

from stepjepa.evaluation.metrics.base import Judgement, Metric, make_metric, make_metrics

__all__ = ["Judgement", "Metric", "make_metric", "make_metrics"]
