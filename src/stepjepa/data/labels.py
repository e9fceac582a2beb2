"""Which tokens the LM loss is computed on.

- ``assistant``: every answer and the end-of-turn token behind it.
- ``all``: every token but the first, which nothing predicts.
- ``reference``: every token of system, user and assistant, but no end of turn and no padding: what the published LLM-JEPA
  code trains on, whose collator puts the input ids in place of the answer-only labels and leaves the padding token out,
  which is the end of turn. Kept for comparison: such a model is not taught to stop.

Shapes: T tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stepjepa.data.tokens import TokenSpan
from stepjepa.data.views import Turn

LABELS = ("assistant", "all", "reference")


def label_spans(
    mode: str, ids: np.ndarray, turns: Sequence[Turn], ends: Iterable[int], limit: int
) -> tuple[TokenSpan, ...]:
    """Token spans that the LM loss is computed on.

    Args:
        mode: one of `LABELS`.
        ids: (T,) the trunk.
        turns: its assistant turns.
        ends: ids of end-of-turn and padding tokens (``reference``).
        limit: tokens of the trunk that are kept.
    """
    length = min(len(ids), limit)
    if mode == "assistant":
        spans = [(max(turn.answer[0], 1), min(turn.label_stop, length)) for turn in turns]
        return tuple((start, stop) for start, stop in spans if start < stop)
    if mode == "all":
        return ((1, length),) if length > 1 else ()
    labelled = ~np.isin(ids[:length], np.fromiter(ends, np.int64))
    labelled[0] = False
    edges = np.flatnonzero(np.diff(labelled, prepend=False, append=False)).reshape(-1, 2).tolist()
    return tuple((start, stop) for start, stop in edges)
