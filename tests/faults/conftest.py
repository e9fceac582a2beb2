"""A run that has ended."""

import pytest

from support.runs import CONSTANT, train


@pytest.fixture(scope="session")
def ended(tmp_path_factory):
    """A run of six steps that has ended, at a constant learning rate, with checkpoints 2, 4 and 6; tests take copies."""
    out = tmp_path_factory.mktemp("ended") / "out"
    assert train(out, *CONSTANT) == 0
    return out
