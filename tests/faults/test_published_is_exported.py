"""Faults: what was uploaded was the form of a checkpoint, not the exported model; checkpoints could not be exported."""

import json
import os
import shutil
import stat
from functools import cache
from types import SimpleNamespace

import huggingface_hub
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from stepjepa import export
from stepjepa.cli.main import main
from stepjepa.errors import ConfigError
from stepjepa.modeling.export import check_keeps_predictors, export_model
from stepjepa.modeling.extras import PredictorRows, add_extras
from stepjepa.modeling.lora import lora_config
from support.families import family_model
from support.models import tiny_model
from support.rows import step_rows, write
from support.tokenizers import byte_bpe_tokenizer, fresh
from support.training import SAVED, trainer_for

NO_NETWORK = "[Errno -2] Name or service not known"
KINDS = {
    "full": [],
    "kept": ["--keep_predictors"],
    "merged": ["--lora"],
    "adapter": ["--lora", "--merge_lora", "false"],
}


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def fake_hub(patch):
    """Stands for the Hub; `uploads` are the contents of the folders that were uploaded, `down` is no network."""
    found = SimpleNamespace(uploads=[], down=False, down_later=False)

    def create_repo(self, repo_id, **kwargs):
        if found.down:
            raise OSError(NO_NETWORK)
        found.down = found.down_later
        return SimpleNamespace(repo_id=f"me/{repo_id.rpartition('/')[2]}")

    def upload_folder(self, *, repo_id, folder_path, allow_patterns, **kwargs):
        if found.down:
            raise OSError(NO_NETWORK)
        files = {name: content for name, content in contents(folder_path).items() if name in allow_patterns}
        found.uploads.append((repo_id, files))
        return SimpleNamespace(repo_url=repo_id)

    patch.setattr(huggingface_hub.HfApi, "create_repo", create_repo)
    patch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
    return found


@pytest.fixture
def hub(monkeypatch):
    return fake_hub(monkeypatch)


def command(folder, *more):
    data = write(folder / "data.jsonl", step_rows(12))
    words = f"train --train_file {data} --model_name tiny --step_jepa --max_steps 2 --batch_size 4 --save_steps 2"
    words += f" --disable_tqdm true --push_to_hub --output_dir {folder / 'run'}"
    return main([*words.split(), *more])


@pytest.fixture(scope="module")
def pushed(tmp_path_factory):
    """Kind -> the folder of a run that was pushed, and what was uploaded; tests take copies."""

    @cache
    def run(kind):
        folder = tmp_path_factory.mktemp(kind)
        with pytest.MonkeyPatch.context() as patch:
            hub = fake_hub(patch)
            assert command(folder, "--predictor_head", "mlp", "--hub_model_id", "me/here", *KINDS[kind]) == 0
        return folder / "run", hub.uploads

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_pushed_once_as_its_final_model_which_its_checkpoint_exports_to(tmp_path, pushed, capsys, kind):
    """Byte for byte, from the last checkpoint; the base of an adapter, which exists nowhere, is initialised again."""
    run, ((name, uploaded),) = pushed(kind)
    final = contents(run)
    weights = {"adapter_model.safetensors" if kind == "adapter" else "model.safetensors"}
    assert name == "me/here" and "# here" in uploaded["README.md"].decode()
    assert uploaded == {name: final[name] for name in uploaded}
    assert weights <= set(uploaded) and not {"training_args.bin", "optimizer.pt", "run.json"} & set(uploaded)
    written = {name: (run / name).stat().st_mtime_ns for name in ("manifest.json", "metrics.json")}
    assert written["manifest.json"] <= written["metrics.json"]  # the model is not written again for the upload

    words = ["export", str(run / "checkpoint-2"), str(tmp_path / "out")]
    assert main([*words, *(["--keep_predictors"] if kind == "kept" else [])]) == 0
    exported = contents(tmp_path / "out")
    settings = [json.loads(files.pop("tokenizer_config.json")) for files in (exported, final)]
    loaded = {"is_local", "local_files_only"}  # which transformers writes of every tokenizer that was loaded
    assert {name: value for name, value in settings[0].items() if name not in loaded} == settings[1]
    bases = [files.get("adapter_config.json", b"").count(b"tiny") for files in (exported, final)]
    exported.pop("adapter_config.json", None)
    assert bases[0] == bases[1]
    del exported["manifest.json"]  # which lists the two files that were compared above
    exported["README.md"] = exported["README.md"].replace(b"out", b"here")  # the names of folder and repository
    final["README.md"] = final["README.md"].replace(b"out", b"here")
    assert exported == {name: final[name] for name in exported}
    assert {*weights, "tokenizer.json", "predictors.safetensors"} <= set(exported)
    capsys.readouterr()
    assert main(words) == 2 and "is not empty" in capsys.readouterr().err


def test_an_export_takes_the_place_of_one_and_leaves_runs_alone(tmp_path, pushed, capsys):
    run, out = pushed("adapter")[0], tmp_path / "out"
    words = ["export", str(run / "checkpoint-2"), str(out), "--overwrite_output_dir"]
    for more, there, gone in (
        (["--merge_lora", "true"], "model.safetensors", "adapter_model.safetensors"),
        ([], "adapter_model.safetensors", "model.safetensors"),
    ):
        assert main([*words, *more]) == 0
        assert (out / there).is_file() and not (out / gone).exists()  # of the model that was there, nothing is left
        for name in ("run.json", "data_report.json"):
            assert (out / name).read_bytes() == (run / name).read_bytes()
    before, _ = contents(run), capsys.readouterr()
    assert main(["export", str(out), str(run), "--overwrite_output_dir"]) == 2
    assert "is the folder of a run" in capsys.readouterr().err and contents(run) == before


def test_a_damaged_checkpoint_is_not_exported(tmp_path, pushed, capsys):
    checkpoint = shutil.copytree(pushed("full")[0] / "checkpoint-2", tmp_path / "checkpoint-2")
    weights = checkpoint / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    for said in ("model.safetensors is damaged", "it has no manifest.json"):
        assert main(["export", str(checkpoint), str(tmp_path / "out")]) == 2
        assert said in capsys.readouterr().err and not (tmp_path / "out").exists()
        (checkpoint / "manifest.json").unlink(missing_ok=True)


def test_what_python_pushes_is_what_save_model_writes(tmp_path, tokenizer, hub):
    """Others may read it."""
    options = {"objective": "step_jepa", "predictors": 2, "predictor_head": "linear", "merge_lora": True}
    one = trainer_for(tmp_path, tokenizer, step_rows(12), peft=lora_config(2), **SAVED, **options)
    one.train()
    one.save_model()
    run = tmp_path / "out"
    before = contents(run)
    one.push_to_hub()
    assert {**contents(run), "README.md": b""} == {**before, "README.md": b""}
    ((_, uploaded),) = hub.uploads
    card = uploaded["README.md"].replace(b"run", b"out")  # the names of repository and folder
    assert card == (run / "README.md").read_bytes().replace(b"run", b"out")
    one.save_model(str(tmp_path / "saved"))
    assert uploaded == contents(tmp_path / "saved")
    (tmp_path / "probe").touch()
    (run / "README.md").write_text("# My own words\n")
    one.push_to_hub()
    assert hub.uploads[-1][1]["README.md"] == b"# My own words\n"
    modes = {stat.S_IMODE(path.stat().st_mode) for path in run.rglob("*.safetensors")}
    assert os.name != "posix" or modes == {stat.S_IMODE((tmp_path / "probe").stat().st_mode)}


@pytest.mark.parametrize(
    ("down", "said"),
    [
        ("down", f"the repository could not be created on the Hub, and nothing was trained or uploaded: {NO_NETWORK}"),
        ("down_later", f"the model was not uploaded to me/run: {NO_NETWORK}; upload it with: hf upload run "),
    ],
)
def test_without_network_before_and_after_training(tmp_path, hub, capsys, down, said):
    """One line, exit status 1; after training the model is on disk."""
    setattr(hub, down, True)
    assert command(tmp_path) == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error and error.splitlines()[-1].startswith(f"stepjepa train: error: {said}")
    if down == "down_later":
        _, loading = AutoModelForCausalLM.from_pretrained(tmp_path / "run", output_loading_info=True)
        assert not loading["missing_keys"] and (tmp_path / "run" / "metrics.json").is_file()


@pytest.mark.parametrize("family", ["mllama", "bert", "llama"])
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


# A model trained here stops after its answer under plain transformers, whatever ends a turn in its chat template


ROWS = [{"question": f"Say {word}", "answer": word} for word in ("red", "blue", "green", "pink")]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A base model as published: its EOS is <|endoftext|>, and a ChatML template ends turns with <|im_end|>."""
    folder, tokenizer = tmp_path_factory.mktemp("base"), fresh(byte_bpe_tokenizer("chatml"))
    tokenizer.add_special_tokens({"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"})
    ends = dict.fromkeys(("eos_token_id", "pad_token_id"), tokenizer.eos_token_id)
    tiny_model("llama", vocab_size=len(tokenizer), **ends).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # A published config: sampling values without sampling, which transformers refuses to write once it is changed.
    config = {"eos_token_id": [tokenizer.eos_token_id], "temperature": 0.6, "top_p": 0.9}
    (folder / "generation_config.json").write_text(json.dumps(config))
    return folder


def trained(base, folder, **options):
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base)
    return trainer_for(folder, tokenizer, ROWS, model=model, objective="regular", **options), tokenizer


def ends_of(folder):
    return json.loads((folder / "generation_config.json").read_text())["eos_token_id"]


def test_it_stops_under_plain_generate(base, tmp_path):
    trainer, tokenizer = trained(base, tmp_path, max_steps=60, save_strategy="steps", save_steps=60)
    trainer.train()
    trainer.save_model()
    folder, eos, end = tmp_path / "out", tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")
    model, words = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": ROWS[1]["question"]}]
    inputs = words.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**inputs, max_new_tokens=20, do_sample=False)[0, inputs["input_ids"].shape[1] :].tolist()
    assert output[-1] == end and words.decode(output[:-1]) == "blue"
    assert sorted(ends_of(folder)) == sorted([eos, end])
    assert words.eos_token == "<|endoftext|>", "the tokenizer's EOS is left alone"
    assert json.loads((folder / "generation_config.json").read_text())["temperature"] == 0.6, "what was there stays"
    assert r"| end of an answer | \<\|im\_end\|\>" in (folder / "README.md").read_text()
    assert ends_of(folder / "checkpoint-60") == ends_of(folder)
    export(tmp_path / "out" / "checkpoint-60", tmp_path / "exported")
    assert ends_of(tmp_path / "exported") == ends_of(folder)


@pytest.mark.parametrize("kind", ["adapter", "no end of turn"])
def test_the_ends_in_the_folder_of_a_model(base, tmp_path, kind):
    """Those of an adapter's chats too; without an end of turn, the EOS that training appends ends an answer."""
    options = {"peft": lora_config(2)} if kind == "adapter" else {"plain": True}
    trainer, tokenizer = trained(base, tmp_path, max_steps=1, **options)
    trainer.train()
    trainer.save_model()
    ends = GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id
    expected = {tokenizer.eos_token_id, *[tokenizer.convert_tokens_to_ids("<|im_end|>")] * (kind == "adapter")}
    assert set(ends if isinstance(ends, list) else [ends]) == expected
