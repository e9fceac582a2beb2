"""A head on a state predicts which tokens come next, whatever their order (future summaries, arXiv:2510.14751).

    ```
    tokens        ..  x_t      x_t+1     x_t+2     x_t+3     x_t+4          labelled: x_t+1 .. x_t+4
    LM loss           h_t  ->  x_t+1
    head              h_t  --------->   {x_t+2,    x_t+3,    x_t+4}         sigmoid(W f(h_t) + log(window / V))
    ```

The companion of `multi_token`: one head for the entire window instead of one per token ahead, so that the window can be
long. The target is the bag of the tokens 2 to `summary_window` ahead, up to the end of the labelled run: 1 for every entry
of the vocabulary that is in it, 0 for all others. f is a network D -> 2 D -> D with GELU in between; W is the model's output
head, which is also trained. Because of the constant log(window / V), an output of 0 corresponds to an entry's frequency in a
random window.

The loss of a state is the binary cross-entropy summed over the vocabulary and divided by the number of entries in the bag B,
so that it is on the scale of an LM loss; a state with no token ahead has no loss:

    gamma * LM + lambda / |B| * sum_v BCE(sigmoid(W f(h_t) + log(window / V))_v, [v in B])

The paper weights entries by rarity, or learns the summary with a second model that reads backwards; neither is done here.
The head is only used in training.

Shapes: P states, one per pair; D width, V vocabulary, A = window - 1 tokens ahead, C rows of a chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepjepa.config.option import Topic, option
from stepjepa.data.types import Batch, ForestOutput, LossPart, LossParts
from stepjepa.objectives.base import JEPA, ModelView
from stepjepa.objectives.multi_token import TokenHeads, predicted
from stepjepa.objectives.options import AHEAD

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass
class FutureSummaryOptions(Topic):
    """Options of objective `future_summary`."""

    summary_window: int = option(
        32,
        "The head predicts which tokens occur from 2 up to this many positions ahead.",
        AHEAD,
        at_least=2,
    )


class FutureSummary(TokenHeads):
    """``--objective future_summary``; see the top of this file."""

    name = "future_summary"
    Options = FutureSummaryOptions
    vector_names = "state", "tokens after"
    distance_name = "binary cross-entropy"

    def modules(self, width: int, vocabulary: int) -> nn.Module:
        """The head."""
        return self.head(width)

    def flops(self, pairs: int, width: int, vocabulary: int) -> float:
        """See `Objective`."""
        return pairs * self.head_flops(width, vocabulary, chunked=pairs > _rows(vocabulary))

    def loss(self, output: ForestOutput, batch: Batch, view: ModelView, step: int) -> LossParts:
        """See `Objective`; the only part is JEPA."""
        import torch.nn.functional as F

        from stepjepa.losses.lm import chunked_sum

        assert view.modules is not None
        window, vocabulary = self.options.summary_window, view.vocabulary
        # Without this constant, the head would first have to learn that most of the vocabulary is absent.
        offset = math.log(window / vocabulary)
        bags_PA = self.tokens_ahead(batch, window, vocabulary, outside=vocabulary)

        def chunk_loss(states_CD: Tensor, tokens_CA: Tensor) -> Tensor:
            logits_CV = view.logits(states_CD).float() + offset
            # Places after the run have the id V: an additional column, which is then dropped.
            bag = logits_CV.new_zeros(len(tokens_CA), vocabulary + 1)
            bag_CV = bag.scatter_(1, tokens_CA, 1.0)[:, :vocabulary]
            losses_CV = F.binary_cross_entropy_with_logits(logits_CV, bag_CV, reduction="none")
            losses_C = losses_CV.sum(dim=1)
            # An empty bag has no loss.
            entries_C = bag_CV.sum(dim=1)
            weights_C = (entries_C > 0) / entries_C.clamp(min=1)
            return (losses_C * weights_C).sum()

        predicted_PD = predicted(view.modules, output.source_states)
        total = chunked_sum(chunk_loss, _rows(vocabulary), predicted_PD, bags_PA)
        return {JEPA: LossPart(total, batch.weight)}


def _rows(vocabulary: int) -> int:
    """Number of states in a chunk, which needs three tensors of the size of its logits: logits, bags and losses."""
    from stepjepa.losses.lm import chunk_rows

    return chunk_rows(3 * vocabulary)
