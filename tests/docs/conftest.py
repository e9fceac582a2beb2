"""Where the pages lie, what makes those of the reference, and the generators of tables."""

from __future__ import annotations

import importlib.util
import runpy
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def reference() -> ModuleType:
    """docs/make_reference.py as a module; mkdocs itself is not needed."""
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs" / "make_reference.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def generator_of() -> Callable[[str], dict[str, Any]]:
    """The names that a script of docs/ defines; it finds the modules next to it, as ``python docs/NAME.py`` does."""

    def run(name: str) -> dict[str, Any]:
        pytest.importorskip("matplotlib")
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(ROOT / "docs"))
            return runpy.run_path(str(ROOT / "docs" / f"{name}.py"))

    return run
