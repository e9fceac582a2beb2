"""Colours of the kinds of tokens: told apart by everybody, and letters that can be read on them."""

from itertools import combinations

import numpy as np
import pytest

from stepjepa.inspect.style import KINDS, letter_colour
from support.colours import DEUTERANOPIA, lab, linear


@pytest.mark.parametrize("paper", ["light", "dark"])
@pytest.mark.parametrize(
    "together",
    ["prompt answer source_end original predictor target source", "prompt answer source_end isolated predictor"],
)
def test_colours_differ_under_deuteranopia(paper, together):
    colours = {name: getattr(kind, paper) for name, kind in KINDS.items()}
    for one, other in combinations(together.split(), 2):
        assert np.linalg.norm(lab(linear(colours[one])) - lab(linear(colours[other]))) > 18
        seen = [lab(DEUTERANOPIA @ linear(colours[kind])) for kind in (one, other)]
        assert np.linalg.norm(seen[0] - seen[1]) > 18, (one, other)


def test_letters_on_colours():
    assert letter_colour("#ffffff") == "#000000" and letter_colour("#0b4a80") == "#ffffff"
