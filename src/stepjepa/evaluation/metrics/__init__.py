"""Metrics of generated answers: one interface, chosen by name.

    with make_metric("gsm8k") as metric:
        verdict = metric.score(generated, row)  # score, gold, answer, note

Each is a pure function of the generated text and the row; none evaluates either as Python.
"""

from stepjepa.evaluation.metrics.registry import METRICS, MODEL_METRICS, NLL, Metric, Verdict, make_metric, make_metrics

__all__ = ["METRICS", "MODEL_METRICS", "NLL", "Metric", "Verdict", "make_metric", "make_metrics"]
