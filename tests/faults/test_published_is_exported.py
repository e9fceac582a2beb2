"""Faults: what was uploaded was the form of a checkpoint, not the exported model; checkpoints could not be exported."""

from __future__ import annotations

import copy
import json
import os
import stat
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepjepa.cli.main import main
from stepjepa.errors import ConfigError
from stepjepa.modeling.export import check_keeps_predictors, export_model
from stepjepa.modeling.extras import PredictorRows, add_extras
from stepjepa.modeling.load import load_tokenizer, lora_config
from stepjepa.training.config import JEPAConfig
from stepjepa.training.trainer import JEPATrainer
from stepjepa.utils.files import mismatch
from support.families import family_model
from support.models import tiny_model
from support.rows import step_rows

IDS = torch.tensor([[7, 8, 9, 10]])
NO_NETWORK = "[Errno -2] Name or service not known"


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny", (message["content"] for row in step_rows(40) for message in row["messages"]))


def trainer_for(folder, tokenizer, peft=None, model=None, **options):
    options = {"objective": "step_jepa", "predictors": 2, "predictor_head": "linear", "max_steps": 2, **options}
    config = JEPAConfig(
        output_dir=str(folder), per_device_train_batch_size=4, logging_steps=1, disable_tqdm=True, save_steps=2,
        learning_rate=1e-2, **options,
    )  # fmt: skip
    model = model or tiny_model("llama", vocab_size=len(tokenizer))
    return JEPATrainer(model, config, step_rows(12), None, tokenizer, peft)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.fixture
def hub(monkeypatch):
    """Stands for the Hub; `uploads` are the contents of the folders that were uploaded, `down` is no network."""
    found = SimpleNamespace(uploads=[], down=False)

    def create_repo(self, repo_id, **kwargs):
        if found.down:
            raise OSError(NO_NETWORK)
        return SimpleNamespace(repo_id=f"me/{repo_id.rpartition('/')[2]}")

    def upload_folder(self, *, repo_id, folder_path, **kwargs):
        if found.down:
            raise OSError(NO_NETWORK)
        found.uploads.append((repo_id, contents(folder_path)))
        return SimpleNamespace(repo_url=repo_id)

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
    return found


@pytest.mark.parametrize("kind", ["full", "kept", "merged", "adapter"])
def test_what_is_pushed_is_what_save_model_writes(tmp_path, tokenizer, hub, kind):
    """With a card, and the output folder is not written to."""
    peft = lora_config(2) if kind in ("merged", "adapter") else None
    options = {"keep_predictors": kind == "kept", "merge_lora": kind == "merged" if peft else None}
    trainer = trainer_for(tmp_path / "run", tokenizer, peft, **options)
    trainer.train()
    trainer.save_model()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    trainer.push_to_hub()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before
    ((name, uploaded),) = hub.uploads
    card = uploaded.pop("README.md").decode()
    assert name == "me/run" and "# run" in card
    assert uploaded == {name: (tmp_path / "run" / name).read_bytes() for name in uploaded}
    trainer.save_model(str(tmp_path / "saved"))
    assert uploaded == contents(tmp_path / "saved")
    assert ("adapter_model.safetensors" if kind == "adapter" else "model.safetensors") in uploaded


def command(folder, *more):
    data = folder / "data.jsonl"
    if not data.exists():
        data.write_text("".join(json.dumps(row) + "\n" for row in step_rows(12)))
    words = (
        f"train --train_file {data} --model_name tiny --step_jepa --max_steps 2 --batch_size 4 --save_steps 1".split()
    )
    return main([*words, "--disable_tqdm", "true", "--output_dir", str(folder / "run"), *more])


def test_the_push_of_a_run_comes_once_and_last(tmp_path, hub):
    """No upload of "training in progress"."""
    assert command(tmp_path, "--push_to_hub", "--hub_model_id", "me/here") == 0
    ((name, uploaded),) = hub.uploads
    assert name == "me/here" and uploaded.pop("README.md")
    final = contents(tmp_path / "run")
    assert uploaded == {name: final[name] for name in uploaded} and "model.safetensors" in uploaded
    assert not {"training_args.bin", "optimizer.pt", "run.json"} & set(uploaded)


@pytest.mark.parametrize("strategy", ["every_save", "checkpoint", "all_checkpoints"])
def test_other_strategies_are_refused_at_the_door(tmp_path, hub, capsys, strategy):
    assert command(tmp_path, "--push_to_hub", "--hub_strategy", strategy) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"hub_strategy is {strategy}" in line and "use end" in line and not (tmp_path / "run").exists()


def test_without_network_before_training(tmp_path, hub, capsys):
    hub.down = True
    assert command(tmp_path, "--push_to_hub") == 1
    error = capsys.readouterr().err.splitlines()[-1]
    said = "the repository could not be made on the Hub, nothing was trained or uploaded"
    assert error == f"stepjepa train: error: {said}: {NO_NETWORK}"


def test_without_network_after_training(tmp_path, hub, capsys, monkeypatch):
    """One line, exit status 1, and the model is on disk."""
    create = huggingface_hub.HfApi.create_repo

    def created(self, *args, **kwargs):
        found = create(self, *args, **kwargs)
        hub.down = True
        return found

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", created)
    assert command(tmp_path, "--push_to_hub") == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    error = f"stepjepa train: error: the model was not uploaded to me/run: {NO_NETWORK}; upload it with: hf upload run "
    assert said.splitlines()[-1].startswith(error)
    model, loading = AutoModelForCausalLM.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert not loading["missing_keys"] and (tmp_path / "run" / "metrics.json").is_file()


@pytest.mark.parametrize("kind", ["full", "kept", "merged", "adapter"])
def test_a_checkpoint_exports_to_what_its_run_would_have_written(tmp_path, hub, capsys, kind):
    """Byte for byte, from the last checkpoint; the base of an adapter, which exists nowhere, is drawn again."""
    more = {
        "full": [],
        "kept": ["--keep_predictors"],
        "merged": ["--lora"],
        "adapter": ["--lora", "--merge_lora", "false"],
    }
    assert command(tmp_path, "--predictor_head", "mlp", *more[kind]) == 0
    words = ["export", str(tmp_path / "run" / "checkpoint-2"), str(tmp_path / "out")]
    assert main([*words, *(["--keep_predictors"] if kind == "kept" else [])]) == 0
    capsys.readouterr()
    exported, final = contents(tmp_path / "out"), contents(tmp_path / "run")
    words_of = [json.loads(files.pop("tokenizer_config.json")) for files in (exported, final)]
    loaded = {"is_local", "local_files_only"}  # which transformers writes of every tokenizer that was loaded
    assert {name: value for name, value in words_of[0].items() if name not in loaded} == words_of[1]
    assert exported.pop("adapter_config.json", b"").count(b"tiny") == final.get("adapter_config.json", b"").count(
        b"tiny"
    )
    del exported["manifest.json"]  # which lists the two files that were compared above
    assert exported == {name: final[name] for name in exported}
    weights = "adapter_model.safetensors" if kind == "adapter" else "model.safetensors"
    assert {weights, "tokenizer.json", "predictors.safetensors"} <= set(exported)
    assert main(words) == 2
    assert "is not empty" in capsys.readouterr().err
    if kind == "adapter":  # the other form takes its place
        assert main([*words, "--merge_lora", "true", "--overwrite_output_dir"]) == 0
        assert "adapter_config.json" not in contents(tmp_path / "out")
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        assert merged.config.vocab_size == merged.get_input_embeddings().weight.shape[0]


def test_an_adapter_of_a_checkpoint_loads_in_peft(tmp_path, tokenizer):
    tiny_model("llama", vocab_size=len(tokenizer)).save_pretrained(tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    trainer = trainer_for(tmp_path / "run", tokenizer, lora_config(2, dropout=0.0), model)
    trainer.train()
    assert main(["export", str(tmp_path / "run" / "checkpoint-2"), str(tmp_path / "out")]) == 0
    trained = trainer.model.eval()(IDS).logits
    for folder in (tmp_path / "run" / "checkpoint-2", tmp_path / "out"):
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        torch.testing.assert_close(PeftModel.from_pretrained(plain, folder).eval()(IDS).logits, trained)
    words = ["export", str(tmp_path / "run" / "checkpoint-2"), str(tmp_path / "merged"), "--merge_lora", "true"]
    assert main([*words, "--base_model", str(tmp_path / "base")]) == 0
    torch.testing.assert_close(AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(IDS).logits, trained)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere", "out"], "nowhere: no checkpoint"),
        (["."], "write: stepjepa export CHECKPOINT OUT"),
        (["model", "model"], "is the checkpoint itself"),
        (["model", "file"], "is a file"),
        (["model", "out", "--base_model", "model"], "is no adapter"),
        (["adapter", "out"], "the adapter names no base; give the base model"),
    ],
)
def test_what_cannot_be_exported(tmp_path, capsys, monkeypatch, tokenizer, words, said):
    monkeypatch.chdir(tmp_path)
    for name in ("model", "adapter"):
        tokenizer.save_pretrained(name)
    tiny_model("llama", vocab_size=len(tokenizer)).save_pretrained("model")
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    (tmp_path / "file").touch()
    capsys.readouterr()  # transformers shows that it writes a model
    assert main(["export", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and not (tmp_path / "out").exists()


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_others_may_read_what_is_written(tmp_path, tokenizer):
    trainer = trainer_for(tmp_path / "run", tokenizer)
    trainer.train()
    trainer.save_model()
    files = list((tmp_path / "run").rglob("*.safetensors"))
    assert len(files) == 4  # model and predictors, of the final model and a checkpoint
    probe = tmp_path / "probe"
    probe.touch()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in files}
    assert modes == {stat.S_IMODE(probe.stat().st_mode)}


def test_several_chat_templates_are_exported(tmp_path, tokenizer):
    own = copy.deepcopy(tokenizer)
    own.chat_template = {"default": tokenizer.chat_template, "tools": tokenizer.chat_template}
    trainer = trainer_for(tmp_path / "run", own)
    for _ in range(2):
        trainer.save_model(str(tmp_path / "out"))
    assert mismatch(tmp_path / "out") is None
    assert set(AutoTokenizer.from_pretrained(tmp_path / "out").chat_template) == {"default", "tools"}


@pytest.mark.parametrize("family", ["mllama", "moshi", "bert", "llama"])
def test_a_vocabulary_of_two_sizes_is_exported_or_refused_before_training(tmp_path, tokenizer, family):
    model = family_model(family)
    add_extras(model, PredictorRows.drawn(model, 2, 0))
    export_model(model, tokenizer, tmp_path / "plain", merge_lora=False)
    _, loading = type(model).from_pretrained(tmp_path / "plain", output_loading_info=True)
    assert not loading["missing_keys"] and not loading["mismatched_keys"]
    if family == "llama":
        check_keeps_predictors(model, tokenizer)
    else:
        with pytest.raises(ConfigError, match="the vocabulary of .* cannot grow"):
            check_keeps_predictors(model, tokenizer)


def test_a_damaged_checkpoint_is_not_exported(tmp_path, hub, capsys):
    assert command(tmp_path) == 0
    weights = tmp_path / "run" / "checkpoint-2" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert main(["export", str(weights.parent), str(tmp_path / "out")]) == 2
    assert "model.safetensors is damaged" in capsys.readouterr().err
    (weights.parent / "manifest.json").unlink()
    assert main(["export", str(weights.parent), str(tmp_path / "out")]) == 2
    assert "it has no manifest.json" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_an_export_keeps_the_record_of_its_training_and_leaves_runs_alone(tmp_path, hub, capsys):
    assert command(tmp_path, "--lora", "--merge_lora", "false") == 0
    run, out = tmp_path / "run", tmp_path / "out"
    words = ["export", str(run / "checkpoint-2"), str(out)]
    assert main([*words, "--merge_lora", "true"]) == 0 and (out / "model.safetensors").is_file()
    for name in ("run.json", "data_report.json"):
        assert (out / name).read_bytes() == (run / name).read_bytes()
    assert main([*words, "--overwrite_output_dir"]) == 0  # of the model that was there, nothing is left
    assert (out / "adapter_model.safetensors").is_file() and not (out / "model.safetensors").exists()
    before, _ = contents(run), capsys.readouterr()
    assert main(["export", str(out), str(run), "--overwrite_output_dir"]) == 2
    assert "is the folder of a run" in capsys.readouterr().err and contents(run) == before
