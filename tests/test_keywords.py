"""Signatures of the public functions: the written file is that of the option dataclasses."""

import importlib
from pathlib import Path

import pytest
import transformers

ROOT = Path(__file__).resolve().parents[1]


def test_the_file_is_that_of_the_options(monkeypatch):
    """Names and types of transformers' options are those of the version that is tested."""
    if f"transformers=={transformers.__version__} ; python_version >=" not in (ROOT / "constraints.txt").read_text():
        pytest.skip("another version of transformers has other options")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    tool = importlib.import_module("keywords")
    assert tool.FILE.read_text(encoding="utf-8") == tool.text(), "run: python tools/keywords.py"
