"""What is random about one example: pairs left out (`jepa_ratio`), one pair of several (`step_pairs` random), spans
(semantic tube). Each is a pure function of the seed, of where the example stands, and of how often it was seen before: not
of the rank, the worker, the batch or a resume.
"""

from __future__ import annotations

import numpy as np

from stepjepa.data.examples import Example
from stepjepa.data.tokens import TokenSpan
from stepjepa.data.views import Pair
from stepjepa.forest.tube import TubeOptions, draw_tube, joined
from stepjepa.training.options import JEPAOptions, tube_options

# What is drawn.
ORDER, _RATIO, _SPANS, _PAIR, MIXED, WINDOW = range(6)


class ExampleDraw:
    """Draws what is random about an example.

    Args:
        options: of the run.
        seed: of the draws.
        jepa_ratio: share of the examples whose pairs are kept.
    """

    def __init__(self, options: JEPAOptions, seed: int, jepa_ratio: float = 1.0):
        self.seed, self.jepa_ratio = seed, jepa_ratio
        self._one_pair = options.objective == "step_jepa" and options.step_pairs == "random"
        self._content = options.tube_content
        self._tube: TubeOptions | None = None
        if options.objective == "semantic_tube" and options.uses_pairs:
            self._tube = tube_options(options)

    def __call__(self, example: Example, epoch: int, row: int, source: int = 0) -> Example:
        """The example as it is trained on for the `epoch`-th time, counted from 0."""
        if example.pairs and not keeps_pairs(self.seed, epoch, row, self.jepa_ratio, source):
            return example._replace(pairs=())
        if self._one_pair and len(example.pairs) > 1:
            chosen = generator(self.seed, epoch, row, _PAIR, source).integers(len(example.pairs))
            return example._replace(pairs=(example.pairs[int(chosen)],))
        if self._tube is not None:
            rng = generator(self.seed, epoch, row, _SPANS, source)
            tubes = [draw_tube(*tube_spans(pair, self._content), self._tube, rng) for pair in example.pairs]
            return example._replace(pairs=(), tube=joined([tube for tube in tubes if tube is not None]))
        return example


def tube_spans(pair: Pair, content: str) -> tuple[TokenSpan, TokenSpan]:
    """Token spans of the user's content and the answer's; with ``with_markup`` the answer begins where the user's content
    ends, with ``whole`` the user's begins behind the first token."""
    start = 1 if content == "whole" else pair.source_start
    stop = pair.source_end + 1
    return (start, stop), (stop if content == "with_markup" else pair.target_start, pair.target_end)


def keeps_pairs(seed: int, epoch: int, row: int, ratio: float, source: int = 0) -> bool:
    """Whether a row's pairs are trained on in an epoch: true for a share `ratio` of the rows."""
    return ratio >= 1 or bool(generator(seed, epoch, row, _RATIO, source).random() < ratio)


def generator(seed: int, epoch: int, row: int, what: int, source: int = 0) -> np.random.Generator:
    """Random numbers of one row of one data set in one epoch, counter-based: no state is carried from row to row."""
    key = np.array([seed % 2**64, epoch], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, source, what, row]))
