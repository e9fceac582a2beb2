"""The public functions take the options of their commands by name, and packages named as commands can be called."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module

import pytest

import stepjepa
from stepjepa import api
from stepjepa.config.option import option
from stepjepa.errors import ConfigError


@dataclass
class Options:
    file: str | None = option(None, "A file.", "input")
    count: int = option(3, "How many.", "input")


def work(options: Options, other: str = "x") -> tuple[Options, str]:
    return options, other


def test_options_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "made_up", sys.modules[__name__])
    function = api.command("made_up", "work")
    assert function(file="a") == (Options("a", 3), "x") and function.__name__ == "work"
    with pytest.raises(ConfigError, match="unknown option 'cuont'; did you mean 'count'"):
        function(cuont=1)


def test_packages_with_the_name_of_a_command_can_be_called(monkeypatch):
    monkeypatch.setattr(api, "study", lambda *args, **options: (args, options), raising=False)
    assert stepjepa.study("s.yaml", jobs=2) == (("s.yaml",), {"jobs": 2})
    assert import_module("stepjepa.study.spec") is stepjepa.study.spec and callable(stepjepa.study)


def test_the_functions_load_no_torch_before_they_are_called():
    code = "import stepjepa, sys; assert callable(stepjepa.train); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
