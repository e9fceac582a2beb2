"""What batches of examples cost: positions of padded rows and of packed ones, and tokens by kind.

Shapes: B examples, K predictors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stepjepa.data.examples import Example
from stepjepa.inspect.model import LAYOUTS
from stepjepa.inspect.spans import TrunkSpan


class Form(NamedTuple):
    """How views are read and computed.

    Attributes:
        predictors: K.
        descending: the predictors' order.
        same: one predictor, K times.
        forward: ``packed``, ``inline`` or ``two_pass``.
    """

    predictors: int = 0
    descending: bool = False
    same: bool = False
    forward: str = "packed"

    def predictor_ids(self, vocabulary: int) -> list[int]:
        """K ids in the order in which they stand, right behind `vocabulary`."""
        ids = [vocabulary] * self.predictors if self.same else list(range(vocabulary, vocabulary + self.predictors))
        return ids[::-1] if self.descending else ids


@dataclass
class Padding:
    """Positions that a batch takes, padding included; means over the batches.

    Attributes:
        batch_size: examples of a batch; `batches`: that were laid out.
        max_length: in tokens.
        sequences: rows of a batch with every chat and every view a row of its own.
        fixed_chats, fixed_views: all rows padded to `max_length`: the chats alone; chats and views.
        longest_chats, longest_views: the same, padded to the batch's longest chat, and longest view.
        packed: as training lays the batch out; `packed_rows`: its rows.
        tokens: those of them that are no padding.
    """

    batch_size: int
    batches: int
    max_length: int
    sequences: float
    fixed_chats: float
    fixed_views: float
    longest_chats: float
    longest_views: float
    packed: float
    packed_rows: float
    tokens: float


def measure_padding(
    examples: Sequence[Example], collator: Callable[[Sequence[Example]], Any], batch_size: int, max_length: int
) -> Padding:
    """Lay out batches of `batch_size` examples, in their order; a last batch that is not full is left out unless it is the
    only one.

    Args:
        examples: at least one, as training draws them.
        collator: of training.
    """
    from stepjepa.forest.two_pass import TwoPassCollator  # loads torch

    apart = TwoPassCollator(getattr(collator, "predictor_ids", ()), 0)
    count = max(len(examples) // batch_size, 1)
    sums = np.zeros(8)
    for number in range(count):
        batch = examples[number * batch_size : (number + 1) * batch_size]
        packed, rows = collator(batch), apart(batch)
        sequences = [rows[name].shape for name in ("input_ids", "view_input_ids") if name in rows]
        chats, every = sequences[0][0], sum(shape[0] for shape in sequences)
        areas = [shape[0] * shape[1] for shape in sequences]
        laid = [packed[name] for name in packed if name.endswith("input_ids")]
        sums += (
            every,
            chats * max_length,
            every * max_length,
            areas[0],
            sum(areas),
            sum(ids.numel() for ids in laid),
            sum(len(ids) for ids in laid),
            sum(_filled(packed, name) for name in packed if name.endswith("input_ids")),
        )
    every, fixed_chats, fixed_views, longest_chats, longest_views, positions, rows_, tokens = (sums / count).tolist()
    return Padding(
        batch_size=min(batch_size, len(examples)),
        batches=count,
        max_length=max_length,
        sequences=every,
        fixed_chats=fixed_chats,
        fixed_views=fixed_views,
        longest_chats=longest_chats,
        longest_views=longest_views,
        packed=positions,
        packed_rows=rows_,
        tokens=tokens,
    )


def _filled(batch: Any, name: str) -> int:
    """Positions of ``input_ids`` (of ``target_input_ids``, ..) that are no padding."""
    example, mask = name.replace("input_ids", "example"), name.replace("input_ids", "attention_mask")
    return int((batch[example] >= 0).sum() if example in batch else batch[mask].sum())


def segment_tokens(
    trunks: Sequence[tuple[Example, Sequence[TrunkSpan]]], drawn: Sequence[Example], form: Form, vocabulary: int
) -> dict[str, int]:
    """Tokens by kind; see `feeding.FeedingReport`. Those of one kind that do not occur are 0.

    Args:
        trunks: chats and where their messages stand; plain text has no spans.
        drawn: the same examples, in any order, with the pairs of an epoch.
        vocabulary: predictors have ids from here on.
    """
    kinds = dict.fromkeys("template system user assistant text".split(), 0)
    for example, spans in trunks:
        length = len(example.input_ids)
        kinds["template" if spans else "text"] += length
        for name, start, stop in spans:
            tokens = max(min(stop, length) - start, 0)
            kinds[name if name in ("system", "user") else "assistant"] += tokens
            kinds["template"] -= tokens
    ids = form.predictor_ids(vocabulary)
    kinds |= {"predictors": 0, "source copies": 0, "target copies": 0}
    for example in drawn:
        if not example.pairs:
            continue
        forest = LAYOUTS[form.forward](example, ids)
        predictors = forest.input_ids >= vocabulary
        kinds["predictors"] += int(predictors.sum())
        for part in forest.parts:
            if part.kind != "branch":
                own = part.stop - part.start - int(predictors[part.start : part.stop].sum())
                kinds[f"{part.kind} copies"] += own
    return kinds
