"""Rows to examples under the options of a run, and where the views of an example's pairs are on its trunk."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from stepjepa.data.encode import EncodeOptions, TokenChat
from stepjepa.data.steps import StepRules, StepSplitter
from stepjepa.data.types import Example, PairsFound, Turn
from stepjepa.objectives.base import objective_of
from stepjepa.training.datasets import settings_for
from stepjepa.training.options import JEPAOptions


class View(NamedTuple):
    """A pair: the end of its source, the target [start, stop), and the tokens that are read (None for a predictor)."""

    end: int
    source: int | None
    start: int
    stop: int
    target: int


def views_of(example: Example) -> list[View]:
    found = []
    for pair in example.pairs:
        target = example.view_on_trunk(pair.target)
        assert target is not None
        source = None if example.segment(pair.source) is not None else pair.source.terms[0].token
        read = target.start + pair.target.terms[0].token
        found.append(View(example.sees(pair.source), source, target.start, target.stop, read))
    return found


def settings_of(
    objective: str = "step_jepa",
    splitter: StepSplitter | None = None,
    rules: StepRules | None = None,
    max_positions: int | None = None,
    **options: Any,
) -> EncodeOptions:
    """Without predictors unless they are asked for."""
    if splitter is not None:
        rules = StepRules(splitter)
    values = {"predictors": 0, "step_splitter": "separator", **options, "objective": objective}
    settings = settings_for((), JEPAOptions(**values))
    return replace(settings, max_positions=max_positions, rules=rules or settings.rules)


def pairs_found(
    objective: str, turns: list[Turn], ids: Any = range(40), **options: Any
) -> tuple[list[View], str | None]:
    """The pairs that an objective makes of turns in tokens, and why there are none."""
    found = found_by(objective, turns, ids, **options)
    return views_of(Example(np.asarray(ids, np.int32), (), found.segments, found.pairs)), found.reason


def found_by(objective: str, turns: list[Turn], ids: Any = range(40), **options: Any) -> PairsFound:
    """What an objective makes of turns in tokens."""
    ids = np.asarray(ids, np.int32)
    settings = JEPAOptions(**{"predictors": 0, **options, "objective": objective})
    return objective_of(settings).pairs_of(TokenChat(ids, ids, turns, [], None, None))


def labelled(tokenizer: Any, example: Example) -> list[str]:
    """The text of each label span."""
    return [tokenizer.decode(example.trunk[start:stop].tolist()) for start, stop in example.labels]
