"""`stepjepa.show_row`: what ``stepjepa inspect`` shows, from Python."""

from __future__ import annotations

import html
import re

import pytest

from stepjepa import show_row
from stepjepa.cli.main import main
from stepjepa.errors import ConfigError
from support.rows import step_rows, write

STEP = {"objective": "step_jepa", "predictors": 2}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("show") / "rows.jsonl"
    write(path, step_rows(6))
    return path


def test_it_says_and_writes_what_the_command_does(file, tmp_path, capsys):
    command = ["inspect", str(file), "--row", "2", "--model_name", "tiny", "--step_jepa", "--predictors", "2"]
    assert main(command) == 0
    view = show_row(file, "tiny", 2, **STEP)
    assert str(view) == capsys.readouterr().out.rstrip("\n")
    assert main([*command, "--html", str(tmp_path / "command.html")]) == 0
    view.save(tmp_path / "view.html")
    assert (tmp_path / "view.html").read_bytes() == (tmp_path / "command.html").read_bytes()
    with pytest.raises(ConfigError, match="exists; choose another name, or give --overwrite"):
        view.save(tmp_path / "view.html")
    view.save(tmp_path / "view.html", overwrite=True)
    with pytest.raises(ConfigError, match="must end in .html or .htm or .png"):
        view.save(tmp_path / "row.gif")


def test_a_notebook_shows_the_page_whole():
    rows = [{"question": "</iframe><script>1</script>", "answer": 'One "first" thing.\n\nThen & now.'}]
    view = show_row(rows, "tiny", **STEP)
    shown = view._repr_html_()
    (page,) = re.findall(r'<iframe srcdoc="([^"]*)"', shown)
    assert html.unescape(page) == view.html() and shown.count("<") == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"predictor": 2}, "unknown option 'predictor'; did you mean 'predictors'"),
        ({"row": "1"}, "row is '1'; it must be a whole number at least 0"),
        ({"tokenizer": "tinny"}, "did you mean tiny"),
    ],
)
def test_what_cannot_be_shown(file, options, message):
    with pytest.raises(ConfigError, match=message):
        show_row(file, **{"tokenizer": "tiny", **options})
