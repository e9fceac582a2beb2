"""A run that has ended, and what a kill leaves of one."""

import pytest

from support.runs import CONSTANT, copy_of, train


@pytest.fixture(scope="session")
def ended(tmp_path_factory):
    """A run of six steps that has ended, at a constant learning rate, with checkpoints 2, 4 and 6; tests take copies."""
    out = tmp_path_factory.mktemp("ended") / "out"
    assert train(out, *CONSTANT) == 0
    return out


@pytest.fixture
def killed(ended, tmp_path):
    """What a kill after checkpoint-4 leaves of it."""
    return copy_of(ended, tmp_path, killed_after=4)
