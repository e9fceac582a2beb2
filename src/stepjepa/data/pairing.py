"""Which pairs an example has under an objective, and which of them fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepjepa.data.apart import ApartOptions, standalone_pairs
from stepjepa.data.chat import ChatRenderer
from stepjepa.data.examples import NO_VIEWS
from stepjepa.data.options import EncodeOptions
from stepjepa.data.report import DataReport
from stepjepa.data.streams import split_pair
from stepjepa.data.views import Pair, Turn, content_pairs, question_answer_pairs, step_pairs

Found = tuple[list[Pair], np.ndarray, str | None]  # pairs, tokens of the views apart, why there are no pairs


def stream_pairs(options: EncodeOptions, trunk: np.ndarray) -> Found:
    """Pairs of a piece of plain text of (T,) tokens; see `split_pair`."""
    if options.objective != "split":
        return [], NO_VIEWS, None
    return split_pair(trunk, options.split_ratio, options.last_token)


def chat_pairs(
    options: EncodeOptions,
    turns: Sequence[Turn],
    messages: list[dict[str, str]],
    trunk: np.ndarray,
    tokenizer: Any,
    renderer: ChatRenderer,
) -> Found:
    """Pairs of a chat by objective.

    Args:
        trunk: (T,) its tokens as far as they are kept.
    """
    if options.objective == "llm_jepa" and options.views == "standalone":
        apart = ApartOptions(options.predictors, options.front_pred, options.reverse_pred, options.last_token)
        return standalone_pairs(tokenizer, renderer, messages, len(trunk), apart)
    if options.objective in ("split", "regular"):
        return stream_pairs(options, trunk)
    if options.objective == "semantic_tube":
        pairs, reason = content_pairs(turns)
    elif options.objective == "step_jepa":
        pairs, reason = step_pairs(turns, options.step_pairs, options.last_token, options.horizons)
    else:
        pairs, reason = question_answer_pairs(turns, options.last_token)
    return pairs, NO_VIEWS, reason


def usable_pairs(
    options: EncodeOptions, found: Found, length: int, report: DataReport
) -> tuple[list[Pair], np.ndarray]:
    """The pairs that fit into `max_length` and the model's positions; counts the others.

    Args:
        length: T, tokens of the trunk as far as they are kept.

    Returns:
        The pairs, and the tokens of their views, (V,) int32.
    """
    pairs, views, reason = found
    apart = length if len(views) else None
    limits = (
        ("pair_truncated", options.max_length, 0),
        ("beyond_positions", options.max_positions, options.predictors),
    )
    for why, limit, extra in limits:
        if limit is None or not pairs:
            continue
        kept = [pair for pair in pairs if _reach(pair, apart, extra) <= limit]
        if len(kept) < len(pairs):
            report.pairs_dropped[why] += len(pairs) - len(kept)
            pairs, reason = kept, None if kept else why
    if options.one_pair and len(pairs) > 1:
        report.pairs_dropped["second_pair"] += len(pairs) - 1
        pairs = pairs[:1]
    if not pairs and options.objective != "regular":
        report.examples_without_pairs[reason or "empty_view"] += 1
    return pairs, views if pairs else NO_VIEWS


def _reach(pair: Pair, apart: int | None, predictors: int) -> int:
    """Positions that the views of a pair take, counted from 0.

    Views apart begin there; a target on the trunk stands where it would behind the predictors.

    Args:
        apart: first token index of views that are encoded apart, None where there are none.
    """
    source, target = pair.source_end + 1 + predictors, pair.target_end + predictors
    if apart is not None and pair.source_start >= apart:
        source = pair.source_end + 1 - pair.source_start  # its predictors are among its tokens
    if apart is not None:
        target = pair.target_end - pair.target_start
    return max(source, target)
