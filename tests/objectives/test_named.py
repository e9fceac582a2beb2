"""Functions and classes of one's own by name; `tests/evaluation/metrics` has more that cannot be loaded."""

import sys

import pytest

from stepjepa.config.values import load_named
from stepjepa.errors import ConfigError


def test_a_module_is_looked_for_in_the_current_folder_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_losses.py").write_text("def twice(x):\n    return 2 * x\n")
    before = list(sys.path)
    assert load_named("own_losses:twice", "jepa_loss", ())(3) == 6
    assert sys.path == before
    sys.modules.pop("own_losses")
    with pytest.raises(ConfigError, match="jepa_loss math:nothing: math has no nothing"):
        load_named("math:nothing", "jepa_loss", ())
