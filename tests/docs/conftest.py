"""The scripts of docs/ as modules."""

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="session")
def script() -> Callable[[str], ModuleType]:
    """Loads a script; it finds the modules next to it, as ``python docs/NAME.py`` does."""

    def load(name: str) -> ModuleType:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(DOCS))
            return importlib.import_module(name)

    return load


@pytest.fixture(scope="session")
def reference(script) -> ModuleType:
    """The reference pages; mkdocs itself is not needed."""
    return script("make_reference")
