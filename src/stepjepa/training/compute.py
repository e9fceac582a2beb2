"""Equal compute: how many steps of a JEPA run cost what a regular run of the given length costs (``--same_flop``)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

from stepjepa.modeling.flops import ModelCost, batch_flops
from stepjepa.training.batches import Draw

# Batches that the ratio is taken over.
SAMPLED_BATCHES = 64


def cost_over_regular(dataset: Any, collator: Any, cost: ModelCost, batch_size: int, order: Iterable[Draw]) -> float:
    """FLOPs of this run's batches over those of the same examples without pairs, padding included.

    Args:
        dataset: `DrawnExamples`.
        collator: of the run.
        cost: of its model; the predictor head, which a regular run does not have, costs nothing without pairs.
        batch_size: examples of a micro-batch.
        order: of the examples, as for training: the first `SAMPLED_BATCHES` batches are laid out.
    """
    draws = iter(order)
    own = regular = 0.0
    for _ in range(SAMPLED_BATCHES):
        examples = [dataset[draw] for draw in islice(draws, batch_size)]
        if not examples:
            break
        own += sum(batch_flops(collator(examples), cost).values())
        regular += sum(batch_flops(collator([example.plain() for example in examples]), cost).values())
    return own / regular


class EqualCompute(NamedTuple):
    """A run at the compute of a regular one.

    Attributes:
        regular_steps: optimizer steps of the regular run.
        steps: those of this run.
        ratio: FLOPs of a step of this run over one of the regular run.
    """

    regular_steps: int
    steps: int
    ratio: float


def equal_compute(regular_steps: int, ratio: float) -> EqualCompute:
    """As many steps as cost what `regular_steps` steps of a regular run cost, at least one."""
    return EqualCompute(regular_steps, max(1, round(regular_steps / ratio)), ratio)


def planned_steps(args: Any, examples: int, processes: int) -> int:
    """Optimizer steps of a run as `transformers.Trainer` counts them."""
    if args.max_steps > 0:
        return args.max_steps
    rounded = math.floor if args.dataloader_drop_last else math.ceil
    batches = rounded(examples / (args.per_device_train_batch_size * processes))
    return math.ceil(args.num_train_epochs * max(1, math.ceil(batches / args.gradient_accumulation_steps)))
