"""The model card of every final model, and what run.json says of how a run came about."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard

from stepjepa.api import evaluate, export, train
from stepjepa.cli.main import main
from stepjepa.modeling import card as cards
from stepjepa.modeling.load import load_model, load_tokenizer
from stepjepa.modeling.lora import lora_config
from stepjepa.training.run import circumstances
from support.rows import step_rows, write
from support.tokenizers import fresh
from support.training import trainer_for

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "hf_verysecretindeed"
OWN = "# My own words\n"
DATA = "a|b*<i>.jsonl"
OBJECTIVE = """
from dataclasses import dataclass
from stepjepa.objectives import option
from stepjepa.objectives.regular import Regular

@dataclass
class Own:
    service_token: str = option("", "A secret by its name.")
    weight: float = option(1.0, "A plain one.")

class Mine(Regular):
    Options = Own
"""


def head_of(folder):
    """The head of a card, as the Hub reads it."""
    return ModelCard.load(folder / "README.md").data


def run_code(folder, monkeypatch, capsys, **given):
    """Run the card's own Python, where its folder is found by its name."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(folder.parent)
    exec(compile(code.replace("max_new_tokens=64", "max_new_tokens=4"), "card", "exec"), given)
    capsys.readouterr()
    return code


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with rows, and a base model."""
    folder = tmp_path_factory.mktemp("place")
    write(folder / DATA, step_rows(16))
    tokenizer = load_tokenizer("tiny", [" ".join(str(row) for row in step_rows(16))])
    for part in (load_model("tiny", tokenizer), tokenizer):
        part.save_pretrained(folder / "base")
    return folder


@pytest.fixture(scope="module")
def adapter(place):
    """A run of the command line: an adapter, evaluated while it was trained."""
    data, out = str(place / DATA), str(place / "adapter")
    words = f"--output_dir {out} --step_jepa --lora --lora_rank 2 --max_steps 2 --save_steps 1 --logging_steps 1"
    words = ["--train_file", data, "--eval_file", data, "--model_name", str(place / "base"), *words.split()]
    assert main(["train", *words, "--no_track_flop", "--hub_token", TOKEN, "--disable_tqdm", "true"]) == 0
    return place / "adapter"


def test_the_card_of_a_run(adapter, monkeypatch, capsys):
    head = head_of(adapter)
    text = (adapter / "README.md").read_text()
    assert head.library_name == "peft"
    assert head.tags == ["stepjepa", "jepa", "step_jepa"] and head.base_model is head.datasets is None
    loss = json.loads((adapter / "metrics.json").read_text())["metrics"]["eval_lm_loss"]
    assert f"| lm\\_loss | {loss:.4f} |" in text
    assert str(adapter.parent) not in text, "no path of this machine"
    for said in ("1 \\* LM + 0.1 \\* cosine", "base model | base |", "LoRA, rank 2 |", "16 rows read", "steps | 2 |"):
        assert said in text
    assert "signs of collapse | none in the log |" in text and r"a\|b\*\<i\>.jsonl" in text
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    for fact in (cited["title"], cited["authors"][0]["name"], cited["version"], cited["references"][0]["title"]):
        assert fact in text
    assert "with peft installed" in run_code(adapter, monkeypatch, capsys)


def test_run_json_says_when_where_and_how(adapter):
    record = json.loads((adapter / "run.json").read_text())
    assert abs((datetime.now(timezone.utc) - datetime.fromisoformat(record["date"])).total_seconds()) < 3600
    words = shlex.split(record["command"])
    assert words[:2] == ["stepjepa", "train"] and words[words.index("--hub_token") + 1] == "***"
    assert words[words.index("--track_flop") + 1] == "false" and words[words.index("--lora_rank") + 1] == "2"
    assert record["device"] == "cpu" and set(record["machine"]) == {"platform", "processor", "cpus"}
    assert [path for path in adapter.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()] == []


def test_a_file_of_the_users_own_stays(adapter, tmp_path):
    """Whatever is asked for; a card of ours is written again."""
    out = tmp_path / "out"
    words = ["export", str(adapter / "checkpoint-1"), str(out), "--base_model", str(adapter.parent / "base")]
    assert main(words) == 0 and "steps | 1 |" in (out / "README.md").read_text()
    for text, stays in ((OWN, True), ((out / "README.md").read_text().replace("# out", "# old"), False)):
        (out / "README.md").write_text(text)
        assert main([*words, "--overwrite_output_dir", "--merge_lora", "true"]) == 0
        assert ((out / "README.md").read_text() == text) == stays
    assert head_of(out).library_name == "transformers" and ", merged |" in (out / "README.md").read_text()


def test_kept_predictors_and_adapters_without_a_name_load_as_written(tmp_path, monkeypatch, capsys, bpe_tokenizer):
    kept = trainer_for(
        tmp_path / "kept", fresh(bpe_tokenizer), objective="step_jepa", predictors=2, keep_predictors=True
    )
    kept.save_model()
    code = run_code(tmp_path / "kept" / "out", monkeypatch, capsys)
    assert "['<|predictor_1|>', '<|predictor_2|>']" in code and "suppress_tokens" in code
    made = trainer_for(tmp_path / "made", fresh(bpe_tokenizer), objective="regular", peft=lora_config(2))
    made.save_model()
    base = trainer_for(tmp_path / "made", fresh(bpe_tokenizer)).model
    assert "PeftModel" in run_code(tmp_path / "made" / "out", monkeypatch, capsys, base=base)
    assert head_of(tmp_path / "made" / "out").tags == ["stepjepa", "regular"]


def test_hub_ids_are_linked(tmp_path, monkeypatch, bpe_tokenizer):
    trainer = trainer_for(tmp_path, fresh(bpe_tokenizer))
    trainer.model.config._name_or_path = "some/model"
    for report in trainer.data_reports.values():
        report.source = "some/rows:main"
    trainer.save_model()
    head = head_of(tmp_path / "out")
    assert (head.base_model, head.datasets) == ("some/model", ["some/rows"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some" / "model").mkdir(parents=True)
    assert cards.base_model("some/model") == {"name": "model"}, "a folder here is no Hub id"


def test_secrets_of_an_objective_of_ones_own(tmp_path, place):
    (tmp_path / "mine.py").write_text(OBJECTIVE)
    out = tmp_path / "run"
    own = {"objective": f"{tmp_path / 'mine.py'}:Mine", "service_token": TOKEN, "weight": 0.5}
    done = train(train_file=str(place / DATA), model_name="tiny", output_dir=str(out), max_steps=1, save_steps=1, **own)
    assert done.trainer.args.objective_options["service_token"] == TOKEN
    assert [path for path in out.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()] == []
    assert json.loads((out / "run.json").read_text())["settings"]["objective_options"] == {"weight": 0.5}
    assert TOKEN not in str(done) and head_of(out).tags[-1] == "Mine" and str(tmp_path) not in str(head_of(out))


def test_damaged_records_do_not_cost_a_model(adapter, tmp_path, caplog):
    run = shutil.copytree(adapter, tmp_path / "run")
    (run / "data_report.json").write_text('{"train": 3}')
    made = export(run / "checkpoint-2", tmp_path / "out", base_model=str(adapter.parent / "base"))
    assert "README.md" in made.files and "the model card was written without the records" in caplog.text
    assert head_of(tmp_path / "out").tags == ["stepjepa"]
    assert evaluate(model_name=str(tmp_path / "out"), test_file=str(adapter.parent / DATA), metric=["answer_nll"]).files


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_of_the_working_folder(tmp_path, monkeypatch):
    def recorded():
        return circumstances(None, torch.device("cpu"))["git_commit"]

    def git(*words):
        own = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run([*own, *words], check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert recorded() is None
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    assert recorded() == f"{git('rev-parse', 'HEAD')}-dirty"
    monkeypatch.setenv("STEPJEPA_COMMIT", "abc")  # of a copy, whose repository may be an older one
    assert recorded() == "abc"
