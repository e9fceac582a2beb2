"""Semantic tube: which trunk states are combined into which pair of vectors.

Every mode compares two vectors a pair, a source and a target, and both are linear combinations of hidden states of the
trunk (Semantic Tube Prediction, arXiv:2602.22617, and its published code). So an example needs no extra tokens, only
indices and coefficients; the loss on them is in `stepjepa.losses`.

The content is the user's message and the answer, with the markup between them cut out. A displacement over content
tokens starts at the state of the token in front of them, so n content tokens have n + 1 offsets:

    ```
    token    0    1    2   3   4   5    6    7   8   9
             bos  hdr  [a   b   c] eot  hdr  [d   e] eot       user = (2, 5), answer = (7, 9)
    state         u0           u1       a0       a1            u = (1, 4), a = (6, 8)
    offset        0    1   2   3        3    4   5             L = u1 - u0 = 3, n = L + a1 - a0 = 5
    ```

Offset s stands for ``c(s) = h[u0 + min(s, L)] + h[a0 + max(s - L, 0)]``, and ``c(t) - c(s)`` is the displacement
over the content tokens s+1 .. t. Where it straddles the gap, the gap's own displacement ``h[a0] - h[u1]`` is left out,
in three_index as well; offset L is the end of the user's message and the start of the answer alike. Two options of the
published code are other spans here: with ``answer = (user[1], answer[1])`` the gap counts as content
(``random_span_e2e``), with ``user = (1, user[1])`` so does everything in front of the user's (``random_span_all``).

    ```
    mode          source                     target           pairs
    span          T - P                      P                one a span s < t: T = c(n) - c(0), P = c(t) - c(s)
    three_index   c(t) - c(r)                c(r) - c(s)      one a draw s < r < t
    e2e           h[u1] - h[u0]              h[a1] - h[a0]    one
    mean          mean of the user's states  of the answer's  one, over the content tokens themselves
    curvature     h[i] - h[i-1]              h[i+1] - h[i]    one an angle, within the user's message or the answer
    ```

A span is never the full (0, n), whose rest is the zero vector. With ``l`` = 1 (three_index: 2), the shortest span, and
``m`` = n - 1 (three_index: n) or `max_length` if that is less, the longest, one span is drawn as follows:

    ```
    default     s ~ U{0 .. n-l}, then t ~ U{s+l .. min(n, s+m)}
    zero        s = 0, t ~ U{l .. m}
    draw_both   s, t = min, max of U{0 .. n-1} and U{1 .. n}; a t beyond s + max_length is moved there;
                both are drawn again while the span is shorter than l or longer than m
    uniform     every span of l to m tokens (three_index: every s < r < t with t - s <= m) is equally likely
    three_index (after any of these) r ~ U{s+1 .. t-1}
    ```

In mode span, `default`, `zero` and `draw_both` have the published code's distributions. There, `uniform` ignores
`max_length`, and `zero` can be set beside `draw_both`; it has no three_index.

Shapes: M terms (state times coefficient), P pairs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from stepjepa.data.tokens import TokenSpan
from stepjepa.errors import ConfigError

TubeMode = Literal["span", "three_index", "e2e", "mean", "curvature"]
TubeSampler = Literal["default", "draw_both", "uniform", "zero"]
LengthAdjustment = Literal["none", "cosine_like", "jaccard_like"]


@dataclass(frozen=True)
class TubeOptions:
    """What is compared and how spans are drawn; see the tables at the top of this file.

    Attributes:
        mode: span is the published code's default, three_index the paper's formula.
        sampler: how a span is drawn.
        max_length: longest span (t - s) in content tokens, None for no limit.
        times: spans drawn for an example, independently and with repetition.
        length_adjustment: weight of a pair by the lengths of its two vectors, see `length_weight`.

    Raises:
        ConfigError: an unknown or impossible value, or an option of the draws in a mode that draws nothing.
    """

    mode: TubeMode = "span"
    sampler: TubeSampler = "default"
    max_length: int | None = None
    times: int = 1
    length_adjustment: LengthAdjustment = "none"

    def __post_init__(self) -> None:
        choices = {"mode": TubeMode, "sampler": TubeSampler, "length_adjustment": LengthAdjustment}
        for name, kind in choices.items():
            value, known = getattr(self, name), get_args(kind)
            if value not in known:
                raise ConfigError(f"semantic tube: {name} is {value!r}; known: {', '.join(known)}")
        if self.times < 1:
            raise ConfigError(f"semantic tube: times is {self.times}; at least one span is drawn for an example")
        if self.max_length is not None and self.max_length < self.shortest:
            raise ConfigError(
                f"semantic tube: max_length is {self.max_length}; a span of mode {self.mode} has at least "
                f"{self.shortest} tokens; leave max_length out for no limit"
            )
        drawn = (self.sampler, self.max_length, self.times, self.length_adjustment)
        if not self.draws and drawn != ("default", None, 1, "none"):
            raise ConfigError(
                f"semantic tube: mode {self.mode} draws no spans, so sampler, max_length, times and length_adjustment "
                "have no effect there; leave them out, or choose mode span or three_index"
            )

    @property
    def draws(self) -> bool:
        """Whether the mode draws spans at all."""
        return self.mode in ("span", "three_index")

    @property
    def shortest(self) -> int:
        """Content tokens of the shortest span that the mode can use."""
        return 2 if self.mode == "three_index" else 1


class Combination(NamedTuple):
    """P linear combinations of trunk states as one flat list of terms: ``vector[pair] += coefficient * h[position]``.

    Attributes:
        position: (M,) int32, token indices on the trunk.
        coefficient: (M,) float32.
        pair: (M,) int32 in [0, P), ascending. A pair without terms is the zero vector.
    """

    position: np.ndarray
    coefficient: np.ndarray
    pair: np.ndarray


class Tube(NamedTuple):
    """One example's pairs. The loss is ``sum_p weight_p * distance_p / sum_p weight_p``, both sums over the batch.

    Attributes:
        source, target: the P vectors of either side.
        weight: (P,) float32, positive.
    """

    source: Combination
    target: Combination
    weight: np.ndarray


class _Content(NamedTuple):
    """Indices of the states that bound the two contents; see the drawing at the top of this file."""

    u0: int
    u1: int
    a0: int
    a1: int

    @property
    def user_length(self) -> int:
        return self.u1 - self.u0

    @property
    def length(self) -> int:
        return self.u1 - self.u0 + self.a1 - self.a0

    def path(self, *offsets: int) -> dict[int, int]:
        """``c(o_1) - c(o_0) + c(o_3) - c(o_2) + ..`` as {state: coefficient}; what cancels is left out."""
        terms: dict[int, int] = defaultdict(int)
        for index, offset in enumerate(offsets):
            sign = 1 if index % 2 else -1
            terms[self.u0 + min(offset, self.user_length)] += sign
            terms[self.a0 + max(offset - self.user_length, 0)] += sign
        return {state: coefficient for state, coefficient in sorted(terms.items()) if coefficient}


def draw_tube(user: TokenSpan, answer: TokenSpan, options: TubeOptions, rng: np.random.Generator) -> Tube | None:
    """Draw one example's spans, where its mode has any, and name the states to combine.

    Args:
        user, answer: [first, stop) token spans of the contents on the trunk, the user's first. A content that begins
            with token 0 has no state in front of it; displacements then start at the state of token 0 itself.
        options: what is compared and how spans are drawn.
        rng: the only source of randomness; modes without spans draw nothing from it.

    Returns:
        The pairs, or None where the contents have none: an empty user message or answer; for spans, fewer than two
        content tokens; for e2e, a user message of token 0 alone; for curvature, no two consecutive displacements (the
        published code averages such an example in, with an angle of 0).
    """
    if user[0] >= user[1] or answer[0] >= answer[1]:
        return None
    content = _content(user, answer)
    if (options.draws and content.length < 2) or (options.mode == "e2e" and not content.user_length):
        return None
    spans = draw_spans(content.length, options, rng) if options.draws else []
    tube = tube_of_spans(user, answer, spans, options)
    return tube if len(tube.weight) else None


def joined(tubes: Sequence[Tube]) -> Tube | None:
    """The pairs of several tubes (the turns of one chat) as one; None where there are none."""
    if len(tubes) < 2:
        return tubes[0] if tubes else None
    first = np.cumsum([0, *(len(tube.weight) for tube in tubes)]).tolist()

    def side(name: str) -> Combination:
        parts = [getattr(tube, name) for tube in tubes]
        pairs = [part.pair + np.int32(start) for part, start in zip(parts, first, strict=False)]
        positions, coefficients = (np.concatenate([part[number] for part in parts]) for number in (0, 1))
        return Combination(positions, coefficients, np.concatenate(pairs))

    return Tube(side("source"), side("target"), np.concatenate([tube.weight for tube in tubes]))


def draw_spans(n: int, options: TubeOptions, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Draw `options.times` spans of n >= 2 content tokens as the table at the top of this file says.

    Returns:
        Offsets (s, t) with 0 <= s < t <= n, never (0, n); in mode three_index (s, r, t) with 0 <= s < r < t <= n.
    """
    return [_draw_span(n, options, rng) for _ in range(options.times)]


def tube_of_spans(user: TokenSpan, answer: TokenSpan, spans: Sequence[Sequence[int]], options: TubeOptions) -> Tube:
    """The states to combine for spans already drawn, one pair a span in their order.

    Args:
        user, answer: [first, stop) token spans of the contents, neither of them empty.
        spans: as `draw_spans` returns them; not read in the other modes.
        options: its mode and length_adjustment are read.
    """
    content = _content(user, answer)
    n, user_length = content.length, content.user_length
    if options.mode == "curvature":
        return _curvature(content)
    if options.mode == "mean":
        return Tube(_combination([_mean(user)]), _combination([_mean(answer)]), np.ones(1, np.float32))
    if options.mode == "e2e":
        pieces = [(n - user_length, user_length, content.path(0, user_length), content.path(user_length, n))]
    elif options.mode == "three_index":
        pieces = [(t - r, r - s, content.path(r, t), content.path(s, r)) for s, r, t in spans]
    else:
        pieces = [(n - (t - s), t - s, content.path(0, s, t, n), content.path(s, t)) for s, t in spans]
    weights = [length_weight(r, p, options.length_adjustment) for r, p, _, _ in pieces]
    sources, targets = [source for _, _, source, _ in pieces], [target for _, _, _, target in pieces]
    return Tube(_combination(sources), _combination(targets), np.asarray(weights, np.float32))


def length_weight(source_length: int, target_length: int, adjustment: LengthAdjustment) -> float:
    """Weight of a pair whose vectors span r and p content tokens: less, the more unequal they are.

    none 1; cosine_like ``2rp / (r^2 + p^2)``; jaccard_like ``1 - |r - p| / (r + p)``. In mode span, p is the length of
    the span and r = n - p that of the rest (published code); three_index takes the lengths of its two pieces.
    """
    r, p = source_length, target_length
    if adjustment == "cosine_like":
        return 2 * r * p / (r * r + p * p)
    if adjustment == "jaccard_like":
        return 1 - abs(r - p) / (r + p)
    return 1.0


def _content(user: TokenSpan, answer: TokenSpan) -> _Content:
    return _Content(max(user[0] - 1, 0), user[1] - 1, answer[0] - 1, answer[1] - 1)


def _draw_span(n: int, options: TubeOptions, rng: np.random.Generator) -> tuple[int, ...]:
    three = options.mode == "three_index"
    limit = n if options.max_length is None else options.max_length
    shortest, longest = options.shortest, min(n if three else n - 1, limit)
    if options.sampler == "uniform":
        lengths = np.arange(shortest, longest + 1)
        ways = (n + 1 - lengths) * (lengths - 1 if three else 1)  # starts, times middle indices
        cumulative = np.cumsum(ways)
        length = int(lengths[np.searchsorted(cumulative, rng.integers(cumulative[-1]), side="right")])
        s = int(rng.integers(n - length, endpoint=True))
        t = s + length
    elif options.sampler == "draw_both":
        s = t = 0
        while not shortest <= t - s <= longest:
            s, t = sorted((int(rng.integers(n)), int(rng.integers(1, n, endpoint=True))))
            t = min(t, s + limit)
    else:
        s = 0 if options.sampler == "zero" else int(rng.integers(n - shortest, endpoint=True))
        t = int(rng.integers(s + shortest, min(n, s + longest), endpoint=True))
    return (s, int(rng.integers(s + 1, t)), t) if three else (s, t)


def _combination(vectors: Sequence[Mapping[int, float]]) -> Combination:
    """One {state: coefficient} a pair."""
    terms = [(state, value, pair) for pair, vector in enumerate(vectors) for state, value in vector.items()]
    position, coefficient, pair = zip(*terms, strict=True) if terms else ((), (), ())
    return Combination(np.array(position, np.int32), np.array(coefficient, np.float32), np.array(pair, np.int32))


def _mean(span: TokenSpan) -> dict[int, float]:
    return dict.fromkeys(range(*span), 1 / (span[1] - span[0]))


def _curvature(content: _Content) -> Tube:
    """Consecutive first differences of either content; none reaches over the gap.

    The weight 1 / angles makes the weighted mean over a batch the mean over examples of their mean angle, as published.
    """
    first = np.concatenate([np.arange(content.u0, content.u1 - 1), np.arange(content.a0, content.a1 - 1)])
    angles = len(first)
    pair = np.repeat(np.arange(angles, dtype=np.int32), 2)
    sign = np.tile(np.asarray([-1, 1], np.float32), angles)
    source = np.stack([first, first + 1], axis=1).reshape(-1).astype(np.int32)
    return Tube(
        source=Combination(source, sign, pair),
        target=Combination(source + np.int32(1), sign, pair),
        weight=np.full(angles, 1 / max(angles, 1), np.float32),
    )
