"""Who may import whom inside the library, and that the light entrances stay light.

The order is data, objectives, forest, modeling, training, then study, api and cli. `losses`, `inspect`, `evaluation`,
`analysis` and `report` have rules of their own. No part may import everything.
"""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "stepjepa"

LOWER = {
    "utils": set(),
    "config": set(),
    "data": {"config"},
    "objectives": {"config", "data", "losses"},
    "forest": {"config", "data"},
    # The LM loss is computed inside the wrapped module's call.
    "modeling": {"config", "data", "objectives", "forest", "losses"},
    "training": {"config", "data", "objectives", "forest", "modeling", "losses"},
    "losses": set(),
    "inspect": {"config", "data", "objectives", "forest", "modeling", "training"},
    "generation": {"config", "data", "modeling"},
    "evaluation": {"config", "data", "objectives", "modeling", "generation"},
    "analysis": {
        "config",
        "data",
        "objectives",
        "forest",
        "modeling",
        "training",
        "inspect",
        "generation",
        "evaluation",
    },
    "study": {"config", "data", "objectives", "modeling", "training", "generation", "evaluation", "analysis"},
    "recipes": set(),
    # what others have left on disk, as they read and write it
    "report": {"config", "data", "evaluation", "analysis", "inspect", "study", "training"},
}
ALLOWED = {part: {part, "errors", "utils", "version"} | lower for part, lower in LOWER.items()}
ALLOWED["errors"] = ALLOWED["version"] = {"errors", "version"}
_COMMANDS = {"config", "data", "training", "inspect", "generation", "evaluation", "analysis", "study", "report"}
_COMMANDS |= {"errors", "utils", "version"}
ALLOWED["api"] = {"api", "modeling", *_COMMANDS}
ALLOWED["cli"] = {"cli", "api", *_COMMANDS}  # of packages it takes the options; the work is in api
ALLOWED["__init__"] = {
    "__init__",
    "api",
    "training",
    "inspect",
    "study",
    "report",
    "version",
    "errors",
}  # loaded when first used
ALLOWED["__main__"] = {"cli"}

# Names that the package itself gives, and where they live.
EXPORTED = {
    "JEPAConfig": "training",
    "JEPATrainer": "training",
    **dict.fromkeys(("RowView", "show_row"), "inspect"),
    **dict.fromkeys(
        ("analyze", "check", "compare", "demo", "evaluate", "export", "generate", "prepare", "train"), "api"
    ),
}


def imported_modules(source: str, module: str) -> list[tuple[int, str]]:
    """Line and full dotted name of everything that a file imports, inside functions and by name as well.

    `module` is the file's own dotted name, from which relative imports are counted.
    """
    package = module.split(".")[:-1]
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            found += [(node.lineno, f"{start}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                found.append((node.lineno, node.args[0].value))
    return found


def violations(source: str, path: Path) -> list[str]:
    """What a file under src/stepjepa, `path` relative to it, imports against the rules."""
    part = path.parts[0].removesuffix(".py")
    module = ".".join(["stepjepa", *path.with_suffix("").parts])
    wrong = []
    for line, name in imported_modules(source, module):
        first, *rest = name.split(".")
        if first == "stepjepa":
            target = EXPORTED.get(rest[0], rest[0]) if rest else "__init__"
            if target in ALLOWED and target not in ALLOWED[part]:
                wrong.append(f"{path}:{line}: {part} must not import {name}")
        elif part == "losses" and first != "torch" and first not in sys.stdlib_module_names:
            wrong.append(f"{path}:{line}: losses import torch and the standard library only, not {name}")
    return wrong


def test_every_part_has_a_rule():
    parts = {p.relative_to(SOURCE).parts[0].removesuffix(".py") for p in SOURCE.rglob("*.py")}
    assert parts <= set(ALLOWED), f"no rule for {parts - set(ALLOWED)}: add one to ALLOWED"


def test_the_library_keeps_the_order():
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 5
    wrong = [v for f in files for v in violations(f.read_text(encoding="utf-8"), f.relative_to(SOURCE))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("data/chat.py", "from stepjepa.forest.layout import build"),
        ("data/chat.py", "from stepjepa import forest"),
        ("data/chat.py", "from ..forest import layout"),
        ("data/chat.py", "def f():\n    import stepjepa.training.config"),
        ("data/deep/er.py", "from ...forest import layout"),
        ("forest/layout.py", "from stepjepa.modeling.load import load_model"),
        ("forest/layout.py", "from stepjepa import JEPATrainer"),
        ("modeling/load.py", "import stepjepa.training.trainer"),
        ("modeling/load.py", "from stepjepa.evaluation import run"),
        ("training/trainer.py", "from stepjepa.cli import parser"),
        ("training/trainer.py", "import_module('stepjepa.study.run')"),
        ("losses/lm.py", "import numpy as np"),
        ("losses/lm.py", "from transformers import PreTrainedModel"),
        ("losses/lm.py", "from stepjepa.data import chat"),
        ("inspect/rows.py", "from stepjepa.cli import check"),
        ("inspect/rows.py", "from stepjepa.evaluation import run"),
        ("evaluation/run.py", "from stepjepa.training import trainer"),
        ("analysis/plots.py", "from stepjepa.cli import main"),
        ("analysis/geometry.py", "from stepjepa.study.run import run_study"),
        ("report/runs.py", "from stepjepa.modeling.load import load_model"),
        ("study/run.py", "from stepjepa.cli.parser import StrictParser"),
        ("errors.py", "from stepjepa.data import chat"),
        ("__main__.py", "from stepjepa.training import trainer"),
    ],
)
def test_the_checker_sees_a_violation(path, source):
    wrong = violations(source, Path(path))
    assert len(wrong) == 1
    assert wrong[0].startswith(f"{path}:{source.count(chr(10)) + 1}: ")


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("data/chat.py", "import transformers\nfrom stepjepa.errors import DataError\nfrom . import steps"),
        ("data/chat.py", "from stepjepa import __version__"),
        ("losses/lm.py", "import math\nimport torch.nn.functional as F\nfrom stepjepa.errors import ConfigError"),
        ("training/trainer.py", "from stepjepa.losses import lm\nfrom stepjepa.forest import layout"),
        ("evaluation/run.py", "from stepjepa.modeling import load\nfrom stepjepa.data import chat"),
        ("inspect/rows.py", "from stepjepa.forest import layout\nfrom .terminal import draw"),
        ("cli/train.py", "from stepjepa.study import grid\nfrom stepjepa.training.trainer import JEPATrainer"),
    ],
)
def test_the_checker_lets_the_rest_through(path, source):
    assert violations(source, Path(path)) == []


def assert_loads_no_torch(code: str) -> str:
    end = "\nimport sys\nassert 'torch' not in sys.modules, 'torch was imported'"
    done = subprocess.run([sys.executable, "-c", code + end], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_main(*argv: str) -> str:
    return f"from stepjepa.cli.main import main\nassert main({list(argv)!r}) == 0"


def test_importing_the_package_loads_no_torch():
    assert_loads_no_torch("import stepjepa\nassert 'JEPATrainer' in dir(stepjepa) and stepjepa.__version__")


def test_help_loads_no_torch():
    assert "train" in assert_loads_no_torch(run_main("--help"))


@pytest.mark.skipif(importlib.util.find_spec("stepjepa.cli.train") is None, reason="no train command yet")
def test_help_of_train_loads_no_torch():
    assert "--predictors" in assert_loads_no_torch(run_main("train", "--help"))
