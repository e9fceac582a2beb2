"""The record of the house's figures: what the ratchet refuses and keeps, and what the figures count."""

import importlib
import json
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[1] / "tools"


@pytest.fixture
def tool(monkeypatch):
    """A module of `tools/` by name."""
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module


@pytest.fixture
def sources(tool):
    """Planted files of the library: path below it -> text."""
    source = tool("figures").Source

    def planted(**texts):
        return [source(Path("stepjepa", *name.split("__")).with_suffix(".py"), text) for name, text in texts.items()]

    return planted


@pytest.fixture
def run(tool, monkeypatch, tmp_path):
    """`tools/house.py` on recorded and measured (lines, share): its exit status, and what is recorded after it."""
    house, figures, path = tool("house"), tool("figures"), tmp_path / "house.json"
    directions = {"lines": ("at most", 100), "share": ("at least", 16)}

    def call(now, measured, *flags):
        record = {
            name: {"now": value, "target": target, "direction": direction}
            for (name, (direction, target)), value in zip(directions.items(), now, strict=True)
        }
        path.write_text(json.dumps(record))
        found = {name: figures.Figure(value, []) for name, value in zip(directions, measured, strict=True)}
        monkeypatch.setattr(house, "RECORD", path)
        monkeypatch.setattr(house, "measure", lambda root: found)
        return house.main(list(flags)), tuple(value["now"] for value in json.loads(path.read_text()).values())

    return call


@pytest.mark.parametrize(
    ("now", "measured", "flags", "status", "recorded"),
    [
        ((200, 12), (200, 12), [], 0, (200, 12)),
        ((200, 12), (201, 12), [], 1, (200, 12)),
        ((200, 12), (150, 13), ["--update"], 0, (150, 13)),
        ((200, 12), (150, 13), ["--strict"], 1, (200, 12)),
        ((200, 12), (100, 16), ["--strict"], 0, (200, 12)),
        # Below its target a figure may move, but the best stays recorded.
        ((80, 20), (90, 17), ["--update"], 0, (80, 20)),
        ((80, 20), (101, 17), [], 1, (80, 20)),
    ],
)
def test_figures_only_get_better(run, now, measured, flags, status, recorded):
    assert run(now, measured, *flags) == (status, recorded)


@pytest.mark.parametrize(
    ("back", "files", "packages"),
    [
        ("from stepjepa.data import b", ["stepjepa.data.b <-> stepjepa.forest.a"], ["data <-> forest"]),
        ("from stepjepa.data import c", [], ["data <-> forest"]),
        ("if TYPE_CHECKING:\n    from stepjepa.data import b", ["stepjepa.data.b <-> stepjepa.forest.a"], []),
        ("from stepjepa.errors import DataError", [], []),
    ],
)
def test_import_circles(tool, sources, back, files, packages):
    figures = tool("figures")
    found = figures.import_links(sources(data__b="from ..forest import a", data__c="", forest__a=back, errors=""))
    assert [figures.circles(links) for links in found] == [files, packages]
