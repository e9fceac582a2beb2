"""The wheel alone, in an environment without extras: what a user has after `pip install`. Takes the package index."""

import email
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.rows import step_rows, write

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.long


def run(*command: object, cwd: Path) -> str:
    """What a command prints; with no path of ours in its environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    return next(folder.glob("stepjepa-*.whl"))


def test_what_the_wheel_holds(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (record,) = [name for name in names if name.endswith("/METADATA")]
        metadata = email.message_from_string(archive.read(record).decode())
    source = ROOT / "src"
    files = {str(path.relative_to(source)) for path in (source / "stepjepa").rglob("*") if path.is_file()}
    assert {name for name in files if "__pycache__" not in name} == {name for name in names if "dist-info" not in name}
    assert "stepjepa/py.typed" in names and metadata.get_all("Project-URL")
    page = metadata.get_payload()
    assert metadata["Description-Content-Type"] == "text/markdown" and "# stepjepa" in page
    assert not re.findall(r"\]\((?!https://|#)[^)]*\)", page)  # on an index a relative link or picture leads nowhere


def test_the_wheel_alone_trains_evaluates_and_compares(wheel, tmp_path):
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    program = tmp_path / "env" / "bin"
    run(program / "pip", "install", "--quiet", wheel, "-c", ROOT / "constraints.txt", cwd=tmp_path)
    installed = {one["name"].lower() for one in json.loads(run(program / "pip", "list", "--format=json", cwd=tmp_path))}
    assert not installed & {"matplotlib", "scikit-learn", "statsmodels", "math-verify", "pytest"}
    for seed, name in enumerate(("data", "test")):
        write(tmp_path / f"{name}.jsonl", step_rows(24, seed=seed))
    for command in (
        "train --train_file data.jsonl --model_name tiny --regular --max_steps 3 --output_dir runs/regular",
        "train --train_file data.jsonl --model_name tiny --step_jepa --max_steps 3 --output_dir runs/step",
        "evaluate runs/regular test.jsonl --metric exact answer_nll --max_new_tokens 4",
        "evaluate runs/step test.jsonl --metric exact answer_nll --max_new_tokens 4",
        "report runs/regular runs/step --output_file report.html",
        "inspect data.jsonl --step_jepa --html row.html",
        "demo --train_rows 16 --test_rows 4 --output_dir runs/demo",
    ):
        printed = run(program / "stepjepa", *command.split(), cwd=tmp_path)
        assert "Traceback" not in printed
    for name in ("report.html", "row.html", "runs/demo/report.html", "runs/step/model.safetensors"):
        assert (tmp_path / name).stat().st_size > 10_000, name
