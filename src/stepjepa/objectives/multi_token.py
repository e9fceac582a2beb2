"""Heads on a state predict the tokens further ahead (multi-token prediction, arXiv:2404.19737).

    ```
    tokens        ..  x_t      x_t+1     x_t+2     x_t+3          labelled: x_t+1, x_t+2, x_t+3
    LM loss           h_t  ->  x_t+1
    heads             h_t  --------->    x_t+2                    softmax(W f_2(h_t))
                      h_t  ----------------->      x_t+3          softmax(W f_3(h_t))
    ```

Every head f_k is a network of its own, D -> 2 D -> D with GELU in between; W is the model's output head, trained along. The
cross-entropy is summed over the heads and averaged over the states; tokens beyond the labelled run are left out. It predicts
no states: it is the known remedy where next-token prediction fails to plan. The heads serve training alone.

Shapes: P states, one a pair; D width, N labelled positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stepjepa.config.option import Names, Topic, option
from stepjepa.data.types import Batch, ForestOutput, LossPart, LossParts
from stepjepa.objectives.base import JEPA, LookAhead, ModelView
from stepjepa.objectives.options import AHEAD, LossOptions, PairOptions
from stepjepa.objectives.pairs import VectorNames

if TYPE_CHECKING:
    from torch import nn


@dataclass
class MultiTokenOptions(Topic):
    """Options of objective `multi_token`."""

    token_horizon: int = option(4, "Heads predict the tokens 2 to this many ahead.", AHEAD, at_least=2)
    token_positions: Literal["labelled", "question"] = option(
        "labelled", "States with heads: before every labelled token, or that behind the question alone.", AHEAD
    )


_NAME = Names(LossOptions, PairOptions)


class MultiToken(LookAhead):
    """``--objective multi_token``; see the top of this file."""

    name = "multi_token"
    Options = MultiTokenOptions
    vector_names = VectorNames("tokens ahead", "state", "tokens after")
    distance_name = "cross-entropy"
    unread = LookAhead.unread | {_NAME.jepa_loss, _NAME.regularizer, _NAME.target_grad}

    @property
    def sources(self) -> int | None:  # type: ignore[override]
        """See `LookAhead`."""
        return 1 if self.options.token_positions == "question" else None

    def modules(self, width: int, vocabulary: int) -> nn.Module:
        """The heads."""
        from torch import nn

        heads = nn.ModuleList()
        for _ in range(1, self.options.token_horizon):
            head = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            heads.append(head)
        return heads

    def flops(self, pairs: int, width: int, vocabulary: int) -> float:
        """See `Objective`; as if the output head were trained."""
        from stepjepa.losses.lm import chunk_rows

        products = 3 if pairs <= chunk_rows(vocabulary) else 4  # chunks are computed again in the backward pass
        return float(pairs * (self.options.token_horizon - 1) * (3 * 8 * width**2 + products * 2 * width * vocabulary))

    def loss(self, output: ForestOutput, batch: Batch, view: ModelView, step: int) -> LossParts:
        import torch

        from stepjepa.losses.lm import chunk_rows, chunked_cross_entropy_sum

        assert isinstance(view.modules, torch.nn.ModuleList)
        states_PD = output.source_states
        ids = batch.rows.input_ids.flatten()
        if self.options.control == "random":  # one token for all
            generator = torch.Generator().manual_seed(self.options.seed)
            token = int(torch.randint(view.vocabulary, (), generator=generator))
            ids = torch.full_like(ids, token)
        labelled = batch.label_positions + 1
        next_P = batch.targets.positions  # where the next token is
        inside_P = torch.isin(next_P, labelled)
        rows = chunk_rows(view.vocabulary)
        total = states_PD.new_zeros((), dtype=torch.float32)
        for ahead, head in enumerate(view.modules, 1):
            place_P = next_P + ahead
            inside_P = inside_P & torch.isin(place_P, labelled)
            token_P = ids[place_P.clamp(max=len(ids) - 1)]
            token_P = token_P.where(inside_P, -100)  # which cross-entropy leaves out
            predicted_PD = head(states_PD.float()).to(states_PD.dtype)
            total = total + chunked_cross_entropy_sum(view.logits, predicted_PD, token_P, rows)
        return {JEPA: LossPart(total, batch.weight)}
