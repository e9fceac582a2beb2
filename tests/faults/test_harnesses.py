"""Some cases of the two harnesses: ``make kill`` and ``make fuzz`` run thousands."""

import os

import pytest

from faults import fuzz, kill

CASES = 120

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="cases run in forked children")


def test_a_killed_run_is_resumed_to_the_same_end(tmp_path):
    assert kill.kill_all(tmp_path, 12) == (12, [])


def test_damaged_files_and_odd_options_end_well(tmp_path, capsys):
    fuzz.home_files(tmp_path)
    capsys.readouterr()
    ends, failures = fuzz.run_cases(range(CASES), tmp_path)
    assert not failures, "\n\n".join(failures)
    assert sum(ends.values()) == CASES
    assert min(sum(n for end, n in ends.items() if end.endswith(f" {status}")) for status in (0, 2)) > CASES // 5
