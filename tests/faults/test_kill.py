"""A run that is killed at any file operation ends, when it is resumed, where one that nobody disturbed ends."""

import os

import pytest

from faults import kill


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_run_is_resumed_to_the_same_end(tmp_path):
    assert kill.kill_all(tmp_path, 12) == (12, [])
