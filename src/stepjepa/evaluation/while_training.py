"""Answers of a model that is being trained, scored: what ``--eval_metrics`` adds to the evaluation losses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from stepjepa.data.sources import PairColumns, RowSource
from stepjepa.errors import ConfigError
from stepjepa.evaluation.metrics import NLL, make_metrics
from stepjepa.evaluation.run import evaluate_model


class AnswerScorer:
    """Lets a model answer the first questions of a data set and sums up the scores, a share of them in each process.

    Args:
        rows: what `RowSource` takes.
        metrics: names, see `stepjepa.evaluation.metrics`.
        samples: questions that are answered, over all processes.
        settings: what else `evaluate_model` takes.

    Raises:
        ConfigError: an unknown metric, or one that generates nothing.
    """

    def __init__(
        self,
        rows: Any,
        metrics: Sequence[str],
        samples: int = 100,
        *,
        columns: PairColumns | None = None,
        **settings: Any,
    ):
        if NLL in metrics:
            raise ConfigError(
                f"eval_metrics: {NLL} is the evaluation's lm_loss, which is computed anyway; leave it out"
            )
        if samples < 1:
            raise ConfigError(f"eval_samples is {samples}; it must be at least 1")
        for metric in make_metrics(metrics):  # so that a typo is found before training
            metric.close()
        source = rows if isinstance(rows, RowSource) else RowSource(rows, "test")
        self.rows = [row for _, row in islice(source, samples)]
        self.metrics, self.settings = list(metrics), {"columns": columns, **settings}

    def __call__(
        self, model: Any, tokenizer: Any, process: int = 0, processes: int = 1
    ) -> dict[str, tuple[float, int]]:
        """Sum and number of the scores by metric, and of the answers that did not stop (``did_not_stop``).

        Args:
            process, processes: every process answers the questions whose number leaves its own remainder.
        """
        own = self.rows[process::processes]
        if not own:
            return dict.fromkeys([*self.metrics, "did_not_stop"], (0.0, 0))
        result = evaluate_model(model, tokenizer, own, self.metrics, **self.settings)
        scores = {name: [one.scores[name] for one in result.predictions] for name in self.metrics}
        cut = result.generation["did_not_stop"]
        return {name: (sum(values), len(values)) for name, values in scores.items()} | {
            "did_not_stop": (cut["count"], cut["n"])
        }
