"""Semantic tube: which trunk states are combined into which pair of vectors.

Each pair has a source vector and a target vector, both linear combinations of hidden states of the trunk (Semantic Tube
Prediction, arXiv:2602.22617, and its published code). So an example needs no extra tokens, only `Read`s of several terms.
The loss is ``gamma * LM + lambda * d(source, target)``, with ``d = 1 - cos`` unless `jepa_loss` names another.

The content is the user's message and the answer, without the markup between them. A displacement over content tokens starts
at the state of the token before them, so n content tokens have n + 1 offsets:

    ```
    token    0    1    2   3   4   5    6    7   8   9
             bos  hdr  [a   b   c] eot  hdr  [d   e] eot       user = (2, 5), answer = (7, 9)
    state         u0           u1       a0       a1            u = (1, 4), a = (6, 8)
    offset        0    1   2   3        3    4   5             L = u1 - u0 = 3, n = L + a1 - a0 = 5
    ```

Offset s means ``c(s) = h[u0 + min(s, L)] + h[a0 + max(s - L, 0)]``, and ``c(t) - c(s)`` is the displacement over the content
tokens s+1 .. t. If it spans the gap, the gap's own displacement ``h[a0] - h[u1]`` is left out, in three_index as well;
offset L is both the end of the user's message and the start of the answer. Two options of the published code are expressed
as spans here: with ``answer = (user[1], answer[1])`` the gap counts as content (``random_span_e2e``), with
``user = (1, user[1])`` everything before the user's content does as well (``random_span_all``).

    ```
    mode          source                     target           pairs
    span          T - P                      P                one per span s < t: T = c(n) - c(0), P = c(t) - c(s)
    three_index   c(t) - c(r)                c(r) - c(s)      one per draw s < r < t
    e2e           h[u1] - h[u0]              h[a1] - h[a0]    one
    mean          mean of the user's states  of the answer's  one, over the content tokens themselves
    curvature     h[i] - h[i-1]              h[i+1] - h[i]    one per angle, within the user's message or the answer
    ```

In mode span, a span is never the full (0, n), whose rest is the zero vector. Let ``l`` be the shortest span, 1 (three_index:
2), and ``m`` the longest, n - 1 (three_index: n) or `tube_max_length` if that is less. One span is drawn as follows:

    ```
    default     s ~ U{0 .. n-l}, then t ~ U{s+l .. min(n, s+m)}
    zero        s = 0, t ~ U{l .. m}
    draw_both   s, t = min, max of U{0 .. n-1} and U{1 .. n}; a t beyond s + tube_max_length is moved there;
                both are drawn again while the span is shorter than l or longer than m
    uniform     every span of l to m tokens (three_index: every s < r < t with t - s <= m) is equally likely
    three_index (after any of these) r ~ U{s+1 .. t-1}
    ```

With the sampler `steps` nothing is sampled (Semantic Step Prediction, arXiv:2604.18464). For an answer of N steps, let b_0
be the offset at which the first begins, and b_i the offset at which step i ends:

    ```
    span         s = b_{i-1}, t = b_i               N pairs: a step, and the rest of the content
    three_index  s = b_{i-1}, r = b_i, t = b_{i+1}  N - 1 pairs: a step, and the next one
    ```

In mode span, `default`, `zero` and `draw_both` have the published code's distributions. In that code, `uniform` ignores
`max_length`, `zero` can be combined with `draw_both`, and there is no three_index.

Shapes: P pairs, D width.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from stepjepa.config.option import Names, Topic, option
from stepjepa.data.types import TRUNK, Example, Pair, PairsFound, Read, Span, Term
from stepjepa.errors import ConfigError
from stepjepa.objectives.base import TrunkObjective
from stepjepa.objectives.options import LossOptions
from stepjepa.objectives.pairs import question_and_answer

if TYPE_CHECKING:
    from torch import Tensor

    from stepjepa.data.encode import TokenChat

_GROUP = "semantic tube"


@dataclass
class TubeOptions(Topic):
    """Options of objective `semantic_tube`."""

    tube_mode: Literal["span", "three_index", "e2e", "mean", "curvature"] = option(
        "span",
        "Which vectors are compared; span is the published code's form, three_index the paper's formula.",
        _GROUP,
    )
    tube_sampler: Literal["default", "draw_both", "uniform", "zero", "steps"] = option(
        "default",
        "How spans are sampled; steps uses every span between consecutive step boundaries instead.",
        _GROUP,
    )
    tube_max_length: int | None = option(None, "Longest span in content tokens.", _GROUP)
    tube_times: int = option(
        1, "Spans sampled per question and answer.", _GROUP, at_least=1, at_most=1000
    )
    tube_length_adjustment: Literal["none", "cosine_like", "jaccard_like"] = option(
        "none", "How a span is weighted by its length and the length of the rest.", _GROUP
    )
    tube_content: Literal["messages", "with_markup", "whole"] = option(
        "messages",
        "What spans cover: question and answer, both and the markup between them, or the entire chat.",
        _GROUP,
    )
    tube_layer: int | None = option(
        None,
        "Layer whose states are used (0: embeddings). Default: the last.",
        _GROUP,
        at_least=0,
    )


_NAME = Names(TubeOptions, LossOptions)
# Names of the source and the target vector of each mode.
_VECTORS = {
    "span": ("T - P", "P"),
    "three_index": ("r to t", "s to r"),
    "e2e": ("user", "answer"),
    "mean": ("user", "answer"),
    "curvature": ("before", "after"),
}


class SemanticTube(TrunkObjective):
    """``--objective semantic_tube``; see the tables at the top of this file."""

    name = "semantic_tube"
    Options = TubeOptions
    stream = 2

    @property
    def needs_steps(self) -> bool:  # type: ignore[override]
        return self.options.tube_sampler == "steps"

    @property
    def vector_names(self) -> tuple[str, str]:  # type: ignore[override]
        return _VECTORS[self.options.tube_mode]

    @property
    def distance_name(self) -> str:
        angle = self.options.tube_mode == "curvature"
        return f"{'turning angle' if angle else super().distance_name} of {self.options.tube_mode}"

    def check(self) -> None:
        """As `Objective.check`; raises ConfigError."""
        super().check()
        if self.options.jepa_loss == "infonce":
            raise ConfigError(
                f"{_NAME.jepa_loss}=infonce compares views of different examples, but {self.name} compares spans of one; "
                f"use another {_NAME.jepa_loss}"
            )
        longest, shortest = self.options.tube_max_length, _shortest(self.options)
        if longest is not None and longest < shortest:
            raise ConfigError(
                f"{_NAME.tube_max_length} is {longest}; a span of mode {self.options.tube_mode} has at least {shortest} "
                "tokens; leave it out for no limit"
            )

    @property
    def unread(self) -> frozenset[str]:  # type: ignore[override]
        """See `Objective`."""
        unread = set(super().unread)
        if not draws_spans(self.options):
            unread |= {_NAME.tube_sampler, _NAME.tube_length_adjustment}
        if not self.draws:
            unread |= {_NAME.tube_max_length, _NAME.tube_times}
        # In mode curvature, the turning angle is the loss itself.
        if self.options.tube_mode == "curvature":
            unread.add(_NAME.jepa_loss)
        return frozenset(unread)

    @property
    def layer(self) -> int | None:
        return self.options.tube_layer

    @property
    def draws(self) -> bool:
        return draws_spans(self.options) and not self.needs_steps

    def pairs_of(self, chat: TokenChat) -> PairsFound:
        """The contents of every turn, from which `draw` samples; with the sampler `steps`, the pairs."""
        turns, reason = question_and_answer(chat.turns)
        # with_markup: the answer begins where the user's content ends. whole: the user's content begins after token 0,
        # whose state is the start of the first displacement.
        kind = self.options.tube_content
        contents = []
        for turn in turns:
            user, answer = turn.user, turn.answer
            assert user is not None
            first = Span(1 if kind == "whole" else user.start, user.stop)
            second = Span(user.stop if kind == "with_markup" else answer.start, answer.stop)
            contents.append((first, second))
        if not contents:
            return PairsFound(reason=reason)
        if not self.needs_steps:
            return PairsFound(view_spans=tuple(contents))
        pairs: list[Pair] = []
        for (user, answer), turn in zip(contents, turns, strict=True):
            spans = step_spans(user, answer, turn.steps, self.options)
            pairs += pairs_of_spans(user, answer, spans, self.options)
        return PairsFound(pairs=tuple(pairs), reason=None if pairs else "fewer_than_two_steps")

    def draw(self, example: Example, rng: np.random.Generator) -> Example:
        """The example with the pairs of one epoch."""
        if self.needs_steps:
            return example
        pairs = [
            pair for views in example.view_spans for pair in draw_pairs(*views, self.options, rng)
        ]
        return example._replace(pairs=tuple(pairs), view_spans=())

    def distances(self, source_PD: Tensor, target_PD: Tensor) -> Tensor:
        """As `Objective.distances`, (P,) float32; in mode curvature the turning angle."""
        from stepjepa.losses.distances import turning_angle

        if self.options.tube_mode == "curvature":
            return turning_angle(source_PD, target_PD)
        return super().distances(source_PD, target_PD)


def draws_spans(options: TubeOptions) -> bool:
    """Whether the mode has spans."""
    return options.tube_mode in ("span", "three_index")


def _shortest(options: TubeOptions) -> int:
    """Content tokens of the shortest span that the mode can use."""
    return 2 if options.tube_mode == "three_index" else 1


class _Content(NamedTuple):
    """Indices of the states at the ends of the two contents; see the drawing at the top of this file."""

    u0: int
    u1: int
    a0: int
    a1: int

    @property
    def user_length(self) -> int:
        return self.u1 - self.u0

    @property
    def length(self) -> int:
        return self.user_length + self.a1 - self.a0

    def path(self, *offsets: int) -> tuple[Term, ...]:
        """``c(o_1) - c(o_0) + c(o_3) - c(o_2) + ..``; terms that cancel are left out."""
        # Every offset has a term in each message. For two offsets in the same message, the terms of the other one cancel.
        terms: dict[int, float] = defaultdict(float)
        sign = -1
        for offset in offsets:
            terms[self.u0 + min(offset, self.user_length)] += sign
            terms[self.a0 + max(offset - self.user_length, 0)] += sign
            sign = -sign
        return tuple(Term(TRUNK, state, terms[state]) for state in sorted(terms) if terms[state])


def draw_pairs(
    user: Span, answer: Span, options: TubeOptions, rng: np.random.Generator
) -> list[Pair]:
    """Draw the spans of a question and its answer, if the mode has any, and return the states to combine.

    Args:
        user, answer: the contents on the trunk, the user's first. If a content begins with token 0, there is no state before
            it, and displacements start at the state of token 0 itself.

    Returns:
        The pairs. There are none for an empty user message or answer; for spans with fewer than two content tokens; for e2e
        with a user message of only token 0; for curvature without two consecutive displacements (the published code
        includes such an example in the mean with an angle of 0).
    """
    if user.start >= user.stop or answer.start >= answer.stop:
        return []
    content = _content(user, answer)
    if draws_spans(options) and content.length < 2:
        return []
    # A user's message of only token 0 has no state before it, and so no displacement.
    if options.tube_mode == "e2e" and not content.user_length:
        return []
    times = options.tube_times if draws_spans(options) else 0
    spans = [draw_span(content.length, options, rng) for _ in range(times)]
    return pairs_of_spans(user, answer, spans, options)


def step_spans(
    user: Span, answer: Span, steps: Sequence[Span], options: TubeOptions
) -> list[tuple[int, ...]]:
    """The spans between the bounds of an answer's steps, in the form of `draw_span` and by the second table above."""
    if not steps:
        return []
    content = _content(user, answer)
    bounds = [steps[0].start, *(step.stop for step in steps)]
    offsets = [content.user_length + bound - answer.start for bound in bounds]
    # A step without a token repeats the bound before it.
    offsets = list(dict.fromkeys(offsets))
    if options.tube_mode == "three_index":
        return list(zip(offsets, offsets[1:], offsets[2:], strict=False))
    spans = pairwise(offsets)
    # The rest of a full span would be the zero vector, which has no direction.
    return [span for span in spans if span != (0, content.length)]


def pairs_of_spans(
    user: Span, answer: Span, spans: Sequence[Sequence[int]], options: TubeOptions
) -> list[Pair]:
    """The states to combine for spans that have been drawn, one pair per span, in their order.

    The loss is ``sum_p weight_p * distance_p / sum_p weight_p``, both sums over the batch.

    Args:
        user, answer: the contents, both with tokens.
        spans: in the form of `draw_span`; ignored in modes without spans.
        options: with `tube_mode`, `tube_length_adjustment` and `tube_layer`.
    """
    content = _content(user, answer)
    n, user_length = content.length, content.user_length
    layer, adjustment = options.tube_layer, options.tube_length_adjustment

    def path(*offsets: int) -> Read:
        return Read(content.path(*offsets), layer)

    # By the first table at the top of this file.
    pairs: list[Pair] = []
    if options.tube_mode == "curvature":
        # Angles within each content; none crosses the gap. With the weight 1 / angles, the weighted mean over a batch is the
        # mean over examples of their mean angle, as published.
        angles = [*range(user_length - 1), *range(user_length, n - 1)]
        pairs += [Pair(path(s, s + 1), path(s + 1, s + 2), 1 / len(angles)) for s in angles]
    elif options.tube_mode == "mean":
        source, target = Read.mean(TRUNK, user), Read.mean(TRUNK, answer)
        pairs.append(Pair(source._replace(layer=layer), target._replace(layer=layer)))
    elif options.tube_mode == "e2e":
        weight = length_weight(n - user_length, user_length, adjustment)
        pairs.append(Pair(path(0, user_length), path(user_length, n), weight))
    elif options.tube_mode == "three_index":
        for s, r, t in spans:
            weight = length_weight(t - r, r - s, adjustment)
            pairs.append(Pair(path(r, t), path(s, r), weight))
    else:
        for s, t in spans:
            weight = length_weight(n - (t - s), t - s, adjustment)
            pairs.append(Pair(path(0, s, t, n), path(s, t), weight))
    return pairs


def length_weight(source_length: int, target_length: int, adjustment: str) -> float:
    """Weight of a pair whose vectors span r and p content tokens; it decreases with the difference of r and p.

    none 1; cosine_like ``2rp / (r^2 + p^2)``; jaccard_like ``1 - |r - p| / (r + p)``. In mode span, p is the length of
    the span and r = n - p that of the rest (published code); three_index takes the lengths of its two pieces.
    """
    r, p = source_length, target_length
    if adjustment == "cosine_like":
        return 2 * r * p / (r * r + p * p)
    if adjustment == "jaccard_like":
        return 1 - abs(r - p) / (r + p)
    return 1.0


def _content(user: Span, answer: Span) -> _Content:
    # The user's content may begin with token 0, which has no state before it.
    return _Content(max(user.start - 1, 0), user.stop - 1, answer.start - 1, answer.stop - 1)


def draw_span(n: int, options: TubeOptions, rng: np.random.Generator) -> tuple[int, ...]:
    """Draw a span of n >= 2 content tokens by the sampling table at the top of this file.

    Returns:
        Offsets (s, t) with 0 <= s < t <= n, never (0, n); in mode three_index (s, r, t) with 0 <= s < r < t <= n.
    """
    three_index = options.tube_mode == "three_index"
    limit = n if options.tube_max_length is None else options.tube_max_length
    shortest = _shortest(options)
    longest = min(n if three_index else n - 1, limit)
    # All three branches draw s and t; the middle index comes last. Changing the order of the draws would change what a seed
    # gives.
    if options.tube_sampler == "uniform":
        # A length is drawn with probability proportional to its number of spans, times the number of middle indices.
        lengths = np.arange(shortest, longest + 1)
        starts = n + 1 - lengths
        middle_indices = lengths - 1 if three_index else 1
        cumulative = np.cumsum(starts * middle_indices)
        number = rng.integers(cumulative[-1])
        length = int(lengths[np.searchsorted(cumulative, number, side="right")])
        s = int(rng.integers(n - length, endpoint=True))
        t = s + length
    elif options.tube_sampler == "draw_both":
        # Rejection sampling, as in the published code, so that the distribution is the same.
        s = t = 0
        while not shortest <= t - s <= longest:
            first = int(rng.integers(n))
            second = int(rng.integers(1, n, endpoint=True))
            s, t = min(first, second), max(first, second)
            t = min(t, s + limit)
    else:
        s = 0
        if options.tube_sampler != "zero":
            s = int(rng.integers(n - shortest, endpoint=True))
        t = int(rng.integers(s + shortest, min(n, s + longest), endpoint=True))
    if three_index:
        return s, int(rng.integers(s + 1, t)), t
    return s, t
