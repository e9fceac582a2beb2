"""Heads on a state predict the tokens further ahead (multi-token prediction, arXiv:2404.19737).

    ```
    tokens        ..  x_t      x_t+1     x_t+2     x_t+3          labelled: x_t+1, x_t+2, x_t+3
    LM loss           h_t  ->  x_t+1
    heads             h_t  --------->    x_t+2                    softmax(W f_2(h_t))
                      h_t  ----------------->      x_t+3          softmax(W f_3(h_t))
    ```

Every head f_k is a separate network D -> 2 D -> D with GELU in between; W is the model's output head, which is trained as
well. The cross-entropy is summed over the heads and averaged over the states; tokens beyond the labelled run are left out:

    gamma * LM + lambda * sum over k = 2 .. H of -log softmax(W f_k(h_t))[x_t+k]

The heads predict tokens, not states. The method is the established remedy where next-token prediction fails to plan. The
heads are used in training, and each can draft one token (``--draft_tokens``). The exported model has no heads.

Shapes: P states, one per pair; D width, A tokens ahead, H = A + 1 including the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stepjepa.config.option import Names, Topic, option
from stepjepa.data.types import NOT_LABELLED, Batch, ForestOutput, LossPart, LossParts
from stepjepa.objectives.base import JEPA, LookAhead, ModelView
from stepjepa.objectives.options import AHEAD, LossOptions, PairOptions

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass
class MultiTokenOptions(Topic):
    """Options of objective `multi_token`."""

    token_horizon: int = option(
        4, "Heads predict the tokens from 2 up to this many positions ahead.", AHEAD, at_least=2
    )
    token_positions: Literal["labelled", "question"] = option(
        "labelled",
        "States that the heads read: those before every labelled token, or only the one after the question.",
        AHEAD,
    )


_NAME = Names(LossOptions, PairOptions)


class TokenHeads(LookAhead):
    """An objective whose heads predict the tokens ahead of a state, through the output head, which is trained as well."""

    unread = LookAhead.unread | {_NAME.jepa_loss, _NAME.regularizer, _NAME.target_grad}

    def head(self, width: int) -> nn.Module:
        """A head, D -> 2 D -> D with GELU in between."""
        from torch import nn

        return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def head_flops(self, width: int, vocabulary: int, chunked: bool) -> float:
        """FLOPs of one head on one state, forward and backward, as if the output head were trained. If `chunked`, its logits
        are computed again in the backward pass."""
        # Forward, gradient of the input, gradient of the weights, and the second forward of a chunk.
        products = 4 if chunked else 3
        # Two layers of 2 D^2 weights, two FLOPs per weight: 8 D^2.
        return float(3 * 8 * width**2 + products * 2 * width * vocabulary)

    def tokens_ahead(self, batch: Batch, horizon: int, vocabulary: int, outside: int) -> Tensor:
        """The tokens 2 to `horizon` ahead of each source, (P, A) int64; with ``--control random`` one token everywhere.

        Args:
            outside: the id for tokens after the labelled run of a source's next token.
        """
        import torch

        ids = batch.rows.input_ids.flatten()
        if self.options.control == "random":
            generator = torch.Generator().manual_seed(self.options.seed)
            token = int(torch.randint(vocabulary, (), generator=generator))
            ids = torch.full_like(ids, token)
        # One more place than tokens, never labelled, for tokens ahead that would be after the last row.
        unlabelled = torch.zeros(len(ids) + 1, dtype=torch.bool, device=ids.device)
        labelled = unlabelled.index_fill(0, batch.label_positions + 1, True)
        ahead_H = torch.arange(horizon, device=ids.device)  # of the next token
        place_PH = (batch.targets.positions[:, None] + ahead_H).clamp(max=len(ids))
        # A run has no gaps: a token is in it if all tokens from the next one up to it are labelled.
        inside_PH = labelled[place_PH].cumprod(dim=1).bool()
        tokens_PH = ids[place_PH.clamp(max=len(ids) - 1)].where(inside_PH, outside)
        return tokens_PH[:, 1:]


class MultiToken(TokenHeads):
    """``--objective multi_token``; see the top of this file."""

    name = "multi_token"
    Options = MultiTokenOptions
    vector_names = "state", "tokens after"
    distance_name = "cross-entropy"
    drafts = True

    @property
    def sources(self) -> int | None:  # type: ignore[override]
        """See `LookAhead`."""
        return 1 if self.options.token_positions == "question" else None

    def modules(self, width: int, vocabulary: int) -> nn.Module:
        """The heads."""
        from torch import nn

        return nn.ModuleList(self.head(width) for _ in range(1, self.options.token_horizon))

    def flops(self, pairs: int, width: int, vocabulary: int) -> float:
        """See `Objective`."""
        from stepjepa.losses.lm import chunk_rows

        chunked = pairs > chunk_rows(vocabulary)
        return (
            pairs * (self.options.token_horizon - 1) * self.head_flops(width, vocabulary, chunked)
        )

    def draft(self, state_1D: Tensor, token_1: Tensor, count: int, view: ModelView) -> Tensor:
        """See `Objective`; one token from each head, applied to the state (1, D)."""
        import torch

        assert isinstance(view.modules, torch.nn.ModuleList)
        states = [predicted(head, state_1D) for head in view.modules[:count]]
        drafts = [view.logits(predicted_1D).argmax(dim=-1) for predicted_1D in states]
        return torch.cat([token_1, *drafts])

    def loss(self, output: ForestOutput, batch: Batch, view: ModelView, step: int) -> LossParts:
        import torch

        from stepjepa.losses.lm import chunk_rows, chunked_cross_entropy_sum

        assert isinstance(view.modules, torch.nn.ModuleList)
        states_PD = output.source_states
        tokens_PA = self.tokens_ahead(
            batch, self.options.token_horizon, view.vocabulary, outside=NOT_LABELLED
        )
        rows = chunk_rows(view.vocabulary)
        # One head at a time: the logits of all heads at once would take A times the memory.
        total = states_PD.new_zeros((), dtype=torch.float32)
        for head, token_P in zip(view.modules, tokens_PA.unbind(dim=1), strict=True):
            total = total + chunked_cross_entropy_sum(
                view.logits, predicted(head, states_PD), token_P, rows
            )
        return {JEPA: LossPart(total, batch.weight)}


def predicted(head: nn.Module, states_PD: Tensor) -> Tensor:
    """The output of a head for states (P, D), in their dtype; the head itself is float32."""
    predicted_PD: Tensor = head(states_PD.float())
    return predicted_PD.to(states_PD.dtype)
