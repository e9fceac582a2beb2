"""Functions and classes of one's own by name."""

import sys

import pytest

from stepjepa.config.values import load_named
from stepjepa.errors import ConfigError


def test_a_module_is_looked_for_in_the_current_folder_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_losses.py").write_text("def twice(x):\n    return 2 * x\n")
    before = list(sys.path)
    assert (
        load_named("own_losses:twice", "jepa_loss", ())(3) == load_named("own_losses.py:twice", "jepa_loss", ())(3) == 6
    )
    assert sys.path == before
    sys.modules.pop("own_losses")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cosin", "jepa_loss is 'cosin'; known: cosine, l2, or your own file.py:Name; did you mean cosine?"),
        ("math:nothing", "jepa_loss math:nothing: math has no nothing"),
        ("no_such_module:f", "no_such_module cannot be loaded"),
        ("gone.py:f", "gone.py: there is no such file"),
    ],
)
def test_what_is_not_there(name, message):
    with pytest.raises(ConfigError) as refused:
        load_named(name, "jepa_loss", ("cosine", "l2"))
    assert message in str(refused.value)
