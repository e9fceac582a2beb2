"""Semantic tube: which spans are drawn, and the combinations of states typed out by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from stepjepa.data.types import Span, Turn
from stepjepa.errors import ConfigError
from stepjepa.objectives.semantic_tube import draw_span, length_weight
from stepjepa.training.options import JEPAOptions
from support.encoding import found_by
from support.tube import Side, draw_tube, tube_of, tube_of_spans, tube_options

MODES = ("span", "three_index", "e2e", "mean", "curvature")

# bos hdr [a b c] eot hdr [d e] eot: states u = (1, 4), a = (6, 8), offsets 0 .. 5
USER, ANSWER = (2, 5), (7, 9)


def vectors(combination: Side, pairs: int) -> list[dict[int, float]]:
    assert [array.dtype for array in combination] == [np.int32, np.float32, np.int32]
    found: list[dict[int, float]] = [{} for _ in range(pairs)]
    for position, coefficient, pair in zip(*(array.tolist() for array in combination), strict=True):
        assert position not in found[pair]
        found[pair][position] = coefficient
    return found


ONE_SPAN = [
    # T = h4 - h1 + h8 - h6; the target is P, the source T - P.
    ({}, (1, 3), {2: 1, 1: -1, 8: 1, 6: -1}, {4: 1, 2: -1}),  # ends where the user's message ends
    ({}, (3, 5), {4: 1, 1: -1}, {8: 1, 6: -1}),  # the answer
    ({}, (2, 4), {3: 1, 1: -1, 8: 1, 7: -1}, {4: 1, 3: -1, 7: 1, 6: -1}),  # over the gap
    ({}, (0, 4), {8: 1, 7: -1}, {4: 1, 1: -1, 7: 1, 6: -1}),
    ({}, (4, 5), {4: 1, 1: -1, 7: 1, 6: -1}, {8: 1, 7: -1}),
    ({}, (0, 5), {}, {4: 1, 1: -1, 8: 1, 6: -1}),  # leaves nothing
    ({"mode": "three_index"}, (0, 1, 2), {3: 1, 2: -1}, {2: 1, 1: -1}),
    ({"mode": "three_index"}, (1, 4, 5), {8: 1, 7: -1}, {7: 1, 6: -1, 4: 1, 2: -1}),
    ({"mode": "three_index"}, (2, 3, 5), {8: 1, 6: -1}, {4: 1, 3: -1}),
    ({"mode": "three_index"}, (0, 2, 4), {7: 1, 6: -1, 4: 1, 3: -1}, {3: 1, 1: -1}),
    ({"mode": "e2e"}, (), {4: 1, 1: -1}, {8: 1, 6: -1}),
    ({"mode": "mean"}, (), dict.fromkeys((2, 3, 4), float(np.float32(1 / 3))), {7: 0.5, 8: 0.5}),
]


@pytest.mark.parametrize(("options", "span", "source", "target"), ONE_SPAN)
def test_span_by_hand(options, span, source, target):
    tube = tube_of_spans(USER, ANSWER, [span], tube_options(**options))
    assert (vectors(tube.source, 1), vectors(tube.target, 1)) == ([source], [target])
    assert tube.weight.tolist() == [1] and tube.weight.dtype == np.float32


def test_several_pairs_by_hand():
    """No spans make none; curvature has two angles in the user's message, one in the answer, none over the gap."""
    none = tube_of_spans(USER, ANSWER, [], tube_options())
    assert vectors(none.source, 0) == vectors(none.target, 0) == none.weight.tolist() == []
    two = tube_of_spans(USER, ANSWER, [(0, 5), (0, 1)], tube_options())
    assert vectors(two.source, 2) == [{}, {4: 1, 2: -1, 8: 1, 6: -1}]
    tube = tube_of_spans(USER, ANSWER, [], tube_options(mode="curvature"))
    assert vectors(tube.source, 3) == [{1: -1, 2: 1}, {2: -1, 3: 1}, {6: -1, 7: 1}]
    assert vectors(tube.target, 3) == [{2: -1, 3: 1}, {3: -1, 4: 1}, {7: -1, 8: 1}]
    assert tube.weight.tolist() == [float(np.float32(1 / 3))] * 3


def test_content_from_the_first_token_on_has_no_state_in_front():
    """c(0) is then the state of token 0 itself; no index is negative, which would read another example."""
    tube = tube_of_spans((0, 3), (4, 6), [(0, 2)], tube_options())
    assert (vectors(tube.source, 1), vectors(tube.target, 1)) == ([{5: 1, 3: -1}], [{2: 1, 0: -1}])
    rng = np.random.default_rng(0)
    for mode in MODES:
        drawn = draw_tube((0, 3), (3, 6), tube_options(mode=mode), rng)
        assert min(drawn.source.position.min(), drawn.target.position.min()) >= 0


ALL_OF_FIVE = {(s, t) for s in range(5) for t in range(s + 1, 6)} - {(0, 5)}
TRIPLES = [(s, r, t) for s in range(5) for r in range(s + 1, 5) for t in range(r + 1, 5)]
SAMPLED = [
    # n = 3: s uniform; from 0 the end is 1 or 2, from 1 it is 2 or 3, from 2 it is 3.
    (3, {}, {(0, 1): 1 / 6, (0, 2): 1 / 6, (1, 2): 1 / 6, (1, 3): 1 / 6, (2, 3): 1 / 3}),
    (3, {"max_length": 2}, {(0, 1): 1 / 6, (0, 2): 1 / 6, (1, 2): 1 / 6, (1, 3): 1 / 6, (2, 3): 1 / 3}),
    (3, {"max_length": 1}, dict.fromkeys([(0, 1), (1, 2), (2, 3)], 1 / 3)),
    # U{0,1,2} and U{1,2,3}: of nine equally likely draws (1,1) and (2,2) are empty and (0,3) is full; a long end moves.
    (3, {"sampler": "draw_both"}, {(0, 1): 1 / 6, (0, 2): 1 / 6, (1, 2): 2 / 6, (1, 3): 1 / 6, (2, 3): 1 / 6}),
    (3, {"sampler": "draw_both", "max_length": 1}, {(0, 1): 3 / 7, (1, 2): 3 / 7, (2, 3): 1 / 7}),
    (5, {"sampler": "uniform"}, dict.fromkeys(ALL_OF_FIVE, 1 / 14)),
    (5, {"sampler": "uniform", "max_length": 2}, {span: 1 / 9 for span in ALL_OF_FIVE if span[1] - span[0] <= 2}),
    (4, {"sampler": "zero"}, {(0, 1): 1 / 3, (0, 2): 1 / 3, (0, 3): 1 / 3}),
    (4, {"mode": "three_index", "sampler": "uniform"}, dict.fromkeys(TRIPLES, 1 / 10)),
]


@pytest.mark.parametrize(("n", "options", "expected"), SAMPLED)
def test_distribution_of_the_samplers(n, options, expected, draws=6_000):
    """Within five standard deviations of {span: probability}, and nothing else."""
    rng, options = np.random.default_rng(0), tube_options(**options)
    found = Counter(draw_span(n, options, rng) for _ in range(draws))
    assert set(found) == set(expected) and sum(expected.values()) == pytest.approx(1)
    for span, probability in expected.items():
        deviation = (draws * probability * (1 - probability)) ** 0.5
        assert abs(found[span] - draws * probability) < 5 * deviation + 1, span


@pytest.mark.parametrize("sampler", ["default", "draw_both", "uniform", "zero"])
@pytest.mark.parametrize("mode", ["span", "three_index"])
@pytest.mark.parametrize("max_length", [None, 2, 5, 100])
def test_draws_stay_in_range(mode, sampler, max_length):
    options = tube_options(mode=mode, sampler=sampler, max_length=max_length)
    rng = np.random.default_rng(0)
    for n in range(2, 12):
        for span in (draw_span(n, options, rng) for _ in range(30)):
            assert list(span) == sorted(set(span)) and len(span) == (3 if mode == "three_index" else 2)
            assert all(type(offset) is int for offset in span)
            assert span[0] >= 0 and span[-1] <= n and span[-1] - span[0] <= (max_length or n) and span != (0, n)
            assert sampler != "zero" or span[0] == 0


def test_length_weights_by_hand():
    assert length_weight(1, 3, "none") == 1
    assert length_weight(1, 3, "cosine_like") == length_weight(3, 1, "cosine_like") == pytest.approx(2 * 3 / (1 + 9))
    assert length_weight(1, 3, "jaccard_like") == pytest.approx(1 - 2 / 4)
    assert length_weight(4, 4, "cosine_like") == length_weight(4, 4, "jaccard_like") == 1
    # A span of 2 of 5 tokens; three indices with pieces of 3 and 1 tokens.
    tube = tube_of_spans(USER, ANSWER, [(2, 4)], tube_options(length_adjustment="cosine_like"))
    assert tube.weight.tolist() == pytest.approx([2 * 3 * 2 / (9 + 4)])
    options = tube_options(mode="three_index", length_adjustment="jaccard_like")
    assert tube_of_spans(USER, ANSWER, [(0, 1, 4)], options).weight.tolist() == pytest.approx([0.5])


@pytest.mark.parametrize(
    ("user", "answer", "without"),
    [
        ((2, 2), (4, 9), set(MODES)),
        ((2, 5), (7, 7), set(MODES)),
        ((2, 3), (5, 6), {"curvature"}),
        ((2, 3), (5, 7), set()),
        ((0, 1), (2, 3), {"span", "three_index", "e2e", "curvature"}),
        ((0, 1), (2, 4), {"e2e"}),
    ],
)
def test_degenerate_contents(user, answer, without):
    rng = np.random.default_rng(0)
    assert {mode for mode in MODES if draw_tube(user, answer, tube_options(mode=mode), rng) is None} == without


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tube_max_length": 0}, "max_length is 0; a span of mode span has at least 1 tokens"),
        ({"tube_max_length": 1, "tube_mode": "three_index"}, "is 1; a span of mode three_index has at least 2"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        JEPAOptions(objective="semantic_tube", **options).check()


# bos [a b c] eot hdr [d d|e|f f]: the answer's steps end at the offsets 5, 6 and 8 of 8
TURN = Turn(Span(1, 4), 5, Span(6, 11), 12, (Span(6, 8), Span(8, 9), Span(9, 11)))


@pytest.mark.parametrize(
    ("options", "steps", "spans"),
    [
        ({}, TURN.steps, [(3, 5), (5, 6), (6, 8)]),
        ({"tube_length_adjustment": "jaccard_like", "tube_layer": 1}, TURN.steps[:2], [(3, 5), (5, 6)]),
        ({"tube_mode": "three_index"}, TURN.steps, [(3, 5, 6), (5, 6, 8)]),
        # A step without a token bounds nothing.
        ({"tube_mode": "three_index"}, (Span(6, 8), Span(8, 8), Span(8, 11)), [(3, 5, 8)]),
        ({}, (Span(6, 11),), [(3, 8)]),
    ],
)
def test_steps_bound_the_spans(options, steps, spans):
    found = found_by("semantic_tube", [TURN._replace(steps=steps)], tube_sampler="steps", **options)
    expected = {name.removeprefix("tube_"): value for name, value in options.items()}
    assert found.reason is None and not found.view_spans
    given, wanted = tube_of(found.pairs), tube_of_spans(TURN.user, TURN.answer, spans, tube_options(**expected))
    assert str(given) == str(wanted)


@pytest.mark.parametrize("content", ["messages", "with_markup", "whole"])
def test_neighbouring_steps_by_hand(content):
    """The same states whatever the content is."""
    found = found_by("semantic_tube", [TURN], tube_sampler="steps", tube_mode="three_index", tube_content=content)
    tube = tube_of(found.pairs)
    assert vectors(tube.source, 2) == [{7: -1, 8: 1}, {8: -1, 10: 1}]
    assert vectors(tube.target, 2) == [{5: -1, 7: 1}, {7: -1, 8: 1}]


def test_answers_without_neighbouring_steps():
    options = {"tube_sampler": "steps", "tube_mode": "three_index"}
    assert found_by("semantic_tube", [TURN._replace(steps=TURN.steps[:1])], **options).reason == "fewer_than_two_steps"
    assert found_by("semantic_tube", [TURN._replace(user=None)], **options).reason == "no_user_message"
