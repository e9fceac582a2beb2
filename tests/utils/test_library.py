"""Libraries that come with an extra."""

import sys

import pytest

from stepjepa.errors import ConfigError
from stepjepa.utils.failures import library


def test_a_library_that_is_missing_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"needs umap, .* pip install 'stepjepa\[umap\]'"):
        library("umap", "umap")
