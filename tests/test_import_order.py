"""Who may import whom inside the library, and that the light entrances stay light."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "stepjepa"

# Every part may import itself, `errors`, `utils`, `version` and what stands here.
LOWER = {
    "utils": "",
    "config": "",
    "data": "config",
    "losses": "",
    "objectives": "config data losses",
    "forest": "config data",
    "modeling": "config data objectives forest losses",  # the LM loss is computed inside the wrapped module's call
    "training": "config data objectives forest modeling losses",
    "parts": "config data objectives modeling training",  # the functions that the Trainer calls, for a loop of your own
    "integrations": "parts config data objectives modeling training",  # trainers of other libraries
    "inspect": "config data objectives forest modeling training",
    "generation": "config data objectives modeling",  # an objective drafts
    "evaluation": "config data objectives modeling generation",
    "analysis": "config data objectives forest modeling training inspect generation evaluation",
    "study": "config data objectives modeling training generation evaluation analysis",
    "recipes": "",
    "report": "config data objectives modeling evaluation analysis inspect study training",  # what others left on disk
}
PARTS = "config data modeling training inspect generation evaluation analysis study report errors utils version"
ALLOWED = {part: {part, "errors", "utils", "version", *lower.split()} for part, lower in LOWER.items()} | {
    "errors": {"errors", "version"},
    "version": {"errors", "version"},
    "api": {"api", *PARTS.split()},
    "cli": {"cli", "api", *PARTS.split()},  # of packages it takes the options; the rest is in api
    "__init__": {"__init__", *"api training inspect study report version errors".split()},  # loaded when first used
    "__main__": {"cli"},
}


def test_the_library_keeps_the_order(monkeypatch):
    """Imports inside functions and by name as well."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    figures = importlib.import_module("figures")

    def part_of(module):
        return [*module.split("."), "__init__"][1]

    files, _ = figures.import_links(figures.read(SOURCE))
    found = [(name, target) for name, targets in files.items() for target in targets]
    assert len(found) > 500
    assert [link for link in found if part_of(link[1]) not in ALLOWED[part_of(link[0])]] == []


def test_losses_need_torch_alone():
    for path in (SOURCE / "losses").glob("*.py"):
        names = re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert {*names} <= {"torch", "stepjepa", *sys.stdlib_module_names}, path


@pytest.mark.parametrize(
    "code",
    [
        "import stepjepa\nassert 'JEPATrainer' in dir(stepjepa) and callable(stepjepa.train)",
        "from stepjepa.cli.main import main\nassert main(['--help']) == 0",
        "from stepjepa.cli.main import main\nassert main(['train', '--help']) == 0",
    ],
)
def test_the_light_entrances_load_no_torch(code):
    end = "\nimport sys\nassert 'torch' not in sys.modules, 'torch was imported'"
    done = subprocess.run([sys.executable, "-c", code + end], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
