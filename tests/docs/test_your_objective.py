"""The code and the commands of docs/howto/your_objective.md run as they stand; the class is a full citizen."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from stepjepa.cli.main import main
from stepjepa.study.reading import read_study
from stepjepa.study.records import study_identity
from stepjepa.study.tree import open_study
from support.rows import step_rows, write

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "your_objective.md").read_text(encoding="utf-8")
CODE, PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(COMMANDS,) = re.findall(r"^```bash\n(stepjepa .*?)```", PAGE, re.DOTALL | re.MULTILINE)
NAME = "conclusion.py:Conclusion"
TRAIN = shlex.split(COMMANDS.splitlines()[-1])[1:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The page's files, after its commands."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "conclusion.py").write_text(CODE)
    for seed, name in enumerate(("train", "select", "test")):
        write(folder / f"{name}.jsonl", step_rows(24, seed=seed))
    return folder


@pytest.fixture(autouse=True)
def _there(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.fixture(scope="module")
def trained(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*TRAIN, "--save_steps", "2", "--disable_tqdm"]) == 0
    return folder / "run"


def test_the_class_is_forty_lines_and_the_pages_commands_run(trained, capsys):
    assert len([line for line in CODE.splitlines() if line.strip()]) <= 40
    for line in COMMANDS.splitlines()[:-1]:
        assert main(shlex.split(line)[1:]) == 0
        said = " ".join(capsys.readouterr().out.split())
        loss = f"{NAME}: 1 * LM + 0.1 * cosine, K = 2, from_end 2"
        assert ("--from_end INT" if "--help" in line else loss) in said
    record, metrics = (json.loads((trained / f"{name}.json").read_text()) for name in ("run", "metrics"))
    assert record["settings"]["objective_options"] == {"from_end": 2} and metrics["metrics"]["jepa_loss"] > 0
    resolved = yaml.safe_load((trained / "resolved.yaml").read_text())
    assert (resolved["objective"], resolved["jepa_loss"]) == (NAME, "conclusion.py:log_cosh")


def test_from_python_as_on_the_page(trained, folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    names = {}
    exec(PYTHON, names)
    assert names["trainer"].state.global_step == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from_ent", "2"], "unknown flag --from_ent; did you mean --from_end?"),
        (["--from_end", "0"], "from_end is 0; it must be a whole number at least 1"),
        (["--objective", "conclusion.py:log_cosh"], "is not a subclass of stepjepa.objectives.Objective"),
        (["--objective", "broken.py:Conclusion"], "broken.py cannot be loaded (division by zero)"),
        (["--objective", "clash.py:Clash"], "its option 'lbd' has the name of an existing option; choose another"),
        (["--jepa_loss", "conclusion.py:ConclusionOptions"], "must return one number per pair"),
    ],
)
def test_one_line_for_what_cannot_be_used(words, message, folder, capsys):
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "clash.py").write_text(CODE.replace("from_end", "lbd").replace("Conclusion(", "Clash("))
    objective = [] if "--objective" in words else ["--objective", NAME]
    file = ["--train_file", "train.jsonl", "--model_name", "tiny", "--max_steps", "1", "--output_dir", "never"]
    assert main(["train", *file, *objective, *words]) in (1, 2)
    assert message in capsys.readouterr().err.strip().splitlines()[-1]


def test_resumed_with_the_same_options_and_code_only(trained, folder, capsys):
    again = [*TRAIN, "--max_steps", "6", "--resume_from_checkpoint", "true", "--disable_tqdm"]
    assert main([*again, "--from_end", "3"]) == 2
    assert "has objective_options={'from_end': 2}, not {'from_end': 3}" in capsys.readouterr().err
    other = [word.replace("conclusion.py", "changed.py") for word in again]
    (folder / "changed.py").write_text(CODE)
    assert main(other) == 2
    assert "objective=conclusion.py:Conclusion, not changed.py:Conclusion" in capsys.readouterr().err
    resolved = ["train", "--config", "run/resolved.yaml", "--max_steps", "6", "--resume_from_checkpoint", "true"]
    assert main(resolved) == 0 and "done   6 steps" in capsys.readouterr().out


def test_the_folder_of_a_run_imports_nothing(trained, folder, tmp_path, monkeypatch, capsys):
    """Without the file, everything that reads the run's folder works, or names the flag to give."""
    shutil.copytree(folder, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    Path("conclusion.py").unlink()
    assert main("evaluate run train.jsonl --metric exact --max_examples 2 --max_new_tokens 4".split()) == 0
    assert main(["report", "run"]) == 0 and NAME in Path("run/report.html").read_text()
    assert main(["analyze", "train.jsonl", "--models", "run", "--step_jepa"]) == 0
    assert main(["export", "run/checkpoint-4", "exported"]) == 0


STUDY = f"""
data: {{train_file: train.jsonl, select_file: select.jsonl, test_file: test.jsonl}}
base: {{model_name: tiny, max_steps: 1, objective: "{NAME}", from_end: 1}}
arms: {{regular: {{objective: regular}}, own: {{tune: {{from_end: [1, 2]}}}}}}
seeds: [0]
metrics: [exact, "operator:eq"]
"""


def test_studied(folder, capsys):
    (folder / "study.yaml").write_text(STUDY)
    assert main(["study", "study.yaml", "--dry_run"]) == 0
    assert "one of from_end=1, from_end=2" in capsys.readouterr().out and not (folder / "runs").exists()
    name, tree = open_study("study.yaml")
    (block,) = study_identity(read_study(tree, name))["blocks"].values()
    assert {arm for arm, identity in block["arms"].items() if "code of the objective" in identity} == {"own"}
