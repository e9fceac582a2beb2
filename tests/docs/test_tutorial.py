"""The tutorial's files are written and its commands run, one after the other in one folder, with less of everything."""

import json
import runpy
import shlex
from pathlib import Path

import pytest

from stepjepa.cli.main import main
from support.reports import page_data

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
# What stands on the page, and what the test takes for it.
SHORTER = {
    "n_train=6400, n_test=300": "n_train=120, n_test=6",
    "num_train_epochs: 1": "max_steps: 3",
    "--max_new_tokens 160": "--max_new_tokens 4",
    # Nine trainings and nine scorings, each a process: tests/study carries studies out.
    "stepjepa study study.yaml --jobs 2": "stepjepa study study.yaml --jobs 2 --dry_run",
}
# Its folder is what the study would have written.
LEFT_OUT = "stepjepa report runs/study --output_file study.html"


def blocks() -> list[tuple[str, str]]:
    """Heading and content of the page's fenced blocks, shortened."""
    page = PAGE
    for words, shorter in SHORTER.items():
        assert page.count(words) >= 1, words
        page = page.replace(words, shorter)
    return [tuple(block.split("\n", 1)) for block in page.split("```")[1::2]]


def test_the_tutorial_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn", reason="stepjepa analyze needs the extra analysis")
    pytest.importorskip("submitit", reason="stepjepa study needs the extra study")
    monkeypatch.chdir(tmp_path)
    ran, titles = [], []
    for heading, content in blocks():
        assert heading.split()[0] in ("python", "yaml", "bash", "text")
        if "title=" in heading:
            titles.append(heading.partition('title="')[2].rstrip('"'))
            Path(titles[-1]).write_text(content, encoding="utf-8")
        elif heading == "bash":
            for command in content.replace("\\\n", " ").strip().splitlines():
                if command != LEFT_OUT:
                    run(command, capsys)
                    ran.append(shlex.split(command)[1])
    assert titles == ["make_raw.py", "base.yaml", "study.yaml"]
    assert [name for i, name in enumerate(ran) if name not in ran[:i]] == [
        "make_raw.py", "prepare", "check", "inspect", "train", "evaluate", "analyze", "study", "report",
    ]  # fmt: skip
    written = "train.valid.jsonl row.html report.html runs/step_jepa/metrics.json runs/geometry/numbers.json"
    assert [name for name in written.split() if not (tmp_path / name).is_file()] == []
    assert LEFT_OUT in PAGE
    page = Path("report.html").read_text()
    assert " rows read, " in page and "Left out" not in page
    losses = {line["name"]: line["points"][-1][:2] for line in page_data(page)["charts"]["lm_loss"]}
    for name in ("regular", "step_jepa"):
        metrics = json.loads(Path("runs", name, "metrics.json").read_text())["metrics"]
        assert losses[name] == [3, metrics["eval_lm_loss"]]


def run(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = shlex.split(command)
    if program == "python":
        runpy.run_path(words[0])
        return
    assert program == "stepjepa"
    assert main(words) == 0, f"{command}\n{capsys.readouterr().err}"
