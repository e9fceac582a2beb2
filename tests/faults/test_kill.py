"""A run that is killed at any file operation ends, when it goes on, where one that nobody disturbed ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_run_goes_on_to_the_same_end(tmp_path):
    harness = Path(__file__).with_name("kill.py")
    words = [sys.executable, str(harness), "--points", "12", "--folder", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("12 points")
