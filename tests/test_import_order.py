"""Who may import whom inside the library, and that the light entrances stay light.

The order is data, objectives, forest, modeling, training, then study, api and cli. `losses`, `inspect`, `evaluation`,
`analysis` and `report` have rules of their own. No part may import everything.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "stepjepa"

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
    "generation": "config data modeling",
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

# Names that the package itself gives, and where they live.
EXPORTED = {
    **dict.fromkeys(("JEPAConfig", "JEPATrainer"), "training"),
    **dict.fromkeys(("RowView", "show_row"), "inspect"),
    **dict.fromkeys("analyze check compare demo evaluate export generate prepare train".split(), "api"),
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


def test_the_library_keeps_the_order():
    files = {path.relative_to(SOURCE): path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    assert len(files) > 5 and {path.parts[0].removesuffix(".py") for path in files} <= set(ALLOWED)
    wrong = [line for path, text in files.items() for line in violations(text, path)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("path", "source", "wrong"),
    [
        ("data/chat.py", "from stepjepa.forest.layout import build", 1),
        ("data/chat.py", "from ..forest import layout", 1),
        ("data/chat.py", "def f():\n    import stepjepa.training.config", 1),
        ("forest/layout.py", "from stepjepa import JEPATrainer", 1),
        ("training/trainer.py", "import_module('stepjepa.study.run')", 1),
        ("losses/lm.py", "import numpy as np", 1),
        ("__main__.py", "from stepjepa.training import trainer", 1),
        ("data/chat.py", "import transformers\nfrom stepjepa.errors import DataError\nfrom . import steps", 0),
        ("losses/lm.py", "import math\nimport torch.nn.functional as F\nfrom stepjepa.errors import ConfigError", 0),
    ],
)
def test_the_checker_sees_a_violation(path, source, wrong):
    found = violations(source, Path(path))
    assert len(found) == wrong
    assert all(line.startswith(f"{path}:{source.count(chr(10)) + 1}: ") for line in found)


def run_main(*argv: str) -> str:
    return f"from stepjepa.cli.main import main\nassert main({list(argv)!r}) == 0"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import stepjepa\nassert 'JEPATrainer' in dir(stepjepa) and callable(stepjepa.train)", ""),
        (run_main("--help"), "train"),
        (run_main("train", "--help"), "--predictors"),
    ],
)
def test_the_light_entrances_load_no_torch(code, said):
    end = "\nimport sys\nassert 'torch' not in sys.modules, 'torch was imported'"
    done = subprocess.run([sys.executable, "-c", code + end], capture_output=True, text=True)
    assert done.returncode == 0 and said in done.stdout, done.stderr
