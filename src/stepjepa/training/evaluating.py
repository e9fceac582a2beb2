"""One evaluation: losses over a data set, and scores of generated answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from stepjepa.data.types import LM
from stepjepa.training.meter import precise_dtype
from stepjepa.training.predicting import Predictions

# Model, tokenizer, this process's number, number of processes -> sum and number of the scores by name.
ScoreAnswers = Callable[[Any, Any, int, int], Mapping[str, tuple[float, int]]]


def evaluated(trainer: Any, model: Any, dataloader: Any, predictions: Predictions | None = None) -> dict[str, float]:
    """Means over all labels and pairs of all processes by the names of the log, ``loss`` first; and the means of the scores.

    Args:
        trainer: a `JEPATrainer`.
        model: its model, as it is wrapped for evaluation.
        predictions: takes the predicted ids; None predicts none.
    """
    args = trainer.args
    model.eval()
    meter = trainer.new_meter()
    for batch in dataloader:
        inputs = trainer._prepare_inputs(batch)
        with torch.no_grad(), trainer.compute_loss_context_manager():
            output = trainer.forward(model, inputs, 0, predict_ids=predictions is not None)
            meter.add(output, inputs)
            if predictions is not None:
                predictions.add(inputs, output.predicted_ids, args.eval_batch_size, trainer.accelerator)
        trainer.control = trainer.callback_handler.on_prediction_step(args, trainer.state, trainer.control)
    metrics = meter.metrics(trainer.setup.objective.makes_pairs, trainer.accelerator)
    jepa = sum(meter.weights.get(name, 1.0) * metrics.get(name, 0.0) for name in meter.names if name != LM)
    metrics = {"loss": args.gamma * metrics[LM] + args.lbd * jepa, **metrics}
    return metrics if trainer.score_answers is None else metrics | answer_scores(trainer)


def answer_scores(trainer: Any) -> dict[str, float]:
    """Means of the scores of answers over all processes; a metric without a score is left out."""
    args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    with trainer.compute_loss_context_manager():
        sums = trainer.score_answers(model, trainer.processing_class, args.process_index, args.world_size)
    totals = torch.tensor(list(sums.values()), device=args.device, dtype=precise_dtype(args.device))
    totals = trainer.accelerator.reduce(totals, reduction="sum")
    return {name: total / number for name, (total, number) in zip(sums, totals.tolist(), strict=True) if number}
