"""The plugin in Axolotl itself, in an environment of its own: make test_axolotl. Elsewhere these tests are skipped."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from stepjepa.training.config import JEPAConfig
from stepjepa.training.trainer import JEPATrainer
from support import tool_rows
from support.models import tiny_model
from support.rows import step_rows, write
from support.sharding import launch
from support.trl_templates import tokenizer_with

os.environ |= {"AXOLOTL_DO_NOT_TRACK": "1", "ACCELERATE_USE_CPU": "true"}
pytest.importorskip("axolotl", reason="needs Axolotl: make test_axolotl")

from axolotl.cli.config import load_cfg  # noqa: E402
from axolotl.common.datasets import load_datasets  # noqa: E402
from axolotl.integrations.base import PluginManager  # noqa: E402
from axolotl.train import train  # noqa: E402
from axolotl.utils.chat_templates import get_chat_template  # noqa: E402
from axolotl.utils.dict import DictDefault  # noqa: E402

from stepjepa.integrations.axolotl import JEPAPlugin  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs" / "own_loop.md"
ROWS = step_rows(64, seed=5)
PARTS = ("loss", "lm_loss", "jepa_loss", "num_pairs", "cosine_similarity", "effective_rank")
# In the order of the rows, on this machine.
PLAIN = {"curriculum_sampling": True, "bf16": False, "logging_steps": 1, "dataset_num_proc": 1}


def config(**changes):
    """The configuration of the page, with changes."""
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return {**yaml.safe_load(block), "base_model": "model", **PLAIN, **changes}


@pytest.fixture
def folder(tmp_path, tokenizer, monkeypatch):
    """The model and the rows that the configuration names."""
    monkeypatch.chdir(tmp_path)
    tiny_model("llama", vocab_size=len(tokenizer)).save_pretrained("model")
    tokenizer.save_pretrained("model")
    names = {"user": "human", "assistant": "gpt"}
    turns = [[{"from": names[m["role"]], "value": m["content"]} for m in row["messages"]] for row in ROWS]
    write(tmp_path / "train.jsonl", [{"conversations": chat} for chat in turns])
    return tmp_path


def loaded(given):
    """What Axolotl makes of a configuration, and the data sets of the plugin."""
    Path("config.yml").write_text(yaml.safe_dump(given))
    cfg = load_cfg("config.yml")
    return cfg, PluginManager.get_instance().load_datasets(cfg)


def trained(given):
    """The trainer of `axolotl train`, after its training."""
    cfg, data = loaded(given)
    return train(cfg=cfg, dataset_meta=data)[-1]


def logged(trainer):
    entries = [entry for entry in trainer.state.log_history if "lm_loss" in entry]
    return [{name: entry[name] for name in PARTS if name in entry} for entry in entries]


def reference(tokenizer, batch=4, accumulation=2, epochs=1, **options):
    """The log of `JEPATrainer` on the same rows in the same order."""
    args = JEPAConfig(
        output_dir="reference",
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        num_train_epochs=epochs,
        learning_rate=2e-5,
        lr_scheduler_type="constant",
        optim="adamw_torch",
        train_sampling_strategy="sequential",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        **options,
    )
    model = AutoModelForCausalLM.from_pretrained("model")
    trainer = JEPATrainer(model, args, ROWS, processing_class=tokenizer)
    trainer.train()
    return logged(trainer), model


def assert_same(found, expected):
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


def assert_written(model):
    written = AutoModelForCausalLM.from_pretrained("runs/axolotl").state_dict()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(written[name], weight, atol=1e-6, rtol=0)


def test_the_configuration_of_the_page_has_the_losses_of_the_trainer(folder, tokenizer):
    trainer = trained(config())
    expected, model = reference(tokenizer, objective="step_jepa", predictors=2, lbd=0.1)
    assert_same(logged(trainer), expected)
    assert len(expected) == 8 and all(entry["jepa_loss"] > 0 for entry in expected)
    assert_written(model)
    rows = load_file("runs/axolotl/predictors.safetensors")["predictors.weight"]
    torch.testing.assert_close(rows, model.jepa.predictors.weight, atol=1e-6, rtol=0)


SAMPLED = {
    "objective": "step_jepa",
    "step_pairs": "random",
    "lbd": 0.5,
    "target_encoder": "ema",
    "ema_momentum": 0.5,
    "lbd_warmup_ratio": 0.5,
    "predictor_head": "linear",
}


def test_a_resumed_run_has_the_losses_of_the_trainer(folder, tokenizer):
    """Pairs that are sampled in every epoch, and a head and a target encoder that a checkpoint has to bring back."""
    given = config(jepa=SAMPLED, num_epochs=2, gradient_accumulation_steps=1)
    expected, _ = reference(tokenizer, accumulation=1, epochs=2, **SAMPLED)
    assert_same(logged(trained(given)), expected)
    checkpoint = "runs/axolotl/checkpoint-16"
    assert {"predictors.safetensors", "target_encoder.safetensors"} <= set(os.listdir(checkpoint))
    resumed = logged(trained({**given, "resume_from_checkpoint": checkpoint, "output_dir": "runs/resumed"}))
    assert_same(resumed[-16:], expected[-16:])


def test_two_processes_have_the_losses_of_one(folder, tokenizer):
    given = config(micro_batch_size=2, save_steps=8, jepa={"objective": "step_jepa", "jepa_loss": "infonce"})
    Path("config.yml").write_text(yaml.safe_dump(given))
    done = launch(["config.yml"], "support.axolotl_on_cpu")
    assert done.returncode == 0, done.stderr[-3000:]
    expected, model = reference(tokenizer, objective="step_jepa", jepa_loss="infonce")
    history = json.loads(Path("runs/axolotl/checkpoint-8/trainer_state.json").read_text())["log_history"]
    found = logged(SimpleNamespace(state=SimpleNamespace(log_history=history)))
    for entry in found + expected:
        del entry["effective_rank"]  # of the first process's states
    assert_same(found, expected)
    assert_written(model)


def test_an_adapter_is_trained_next_to_the_rows_and_evaluated(folder):
    lora = {"adapter": "lora", "lora_r": 4, "lora_alpha": 8, "lora_target_linear": True}
    lora |= dict.fromkeys(("lora_qkv_kernel", "lora_o_kernel", "lora_mlp_kernel"), False)  # for GPUs
    trainer = trained(config(**lora, val_set_size=0.25, eval_strategy="epoch"))
    entries = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(trainer.train_dataset) == 48 and len(trainer.eval_dataset) == 16 and len(logged(trainer)) == 6
    assert entries[-1]["eval_loss"] < entries[0]["eval_loss"]
    written = set(os.listdir("runs/axolotl"))
    assert {"adapter_model.safetensors", "predictors.safetensors"} <= written
    assert not [name for name in load_file("runs/axolotl/adapter_model.safetensors") if "jepa" in name]


# Data


def rows_of_both(given):
    """The examples of the plugin and the rows of Axolotl, whose tokens are the same: the labelled places of both."""
    cfg, data = loaded({**given, "dataset_prepared_path": "prepared"})
    examples, theirs = data.train_dataset, load_datasets(cfg=cfg).train_dataset
    assert len(examples) == len(theirs)
    found = []
    for number, row in enumerate(theirs):
        assert examples[number].trunk.tolist() == row["input_ids"]
        labelled = {token for span in examples[number].labels for token in range(*span)}
        found.append((labelled, {place for place, label in enumerate(row["labels"]) if label != -100}))
    return found


def test_chats_are_mapped_and_labelled_as_axolotl_does(folder):
    """Roles, a message that is switched off, a dropped system message, tools, and a length beyond which rows are dropped."""
    rows = []
    for number, row in enumerate(ROWS):
        question, answer = (message["content"] for message in row["messages"])
        turns = [{"who": "rules", "text": "Count."}] * (number % 2)
        turns += [{"who": "pupil", "text": question}, {"who": "master", "text": answer, "learn": number % 3 > 0}]
        turns += [{"who": "pupil", "text": "Again."}, {"who": "master", "text": answer}]
        rows.append({"dialogue": turns})
    write(folder / "train.jsonl", rows)
    entry = {
        "path": "train.jsonl",
        "type": "chat_template",
        "field_messages": "dialogue",
        "message_property_mappings": {"role": "who", "content": "text"},
        "message_field_training": "learn",
        "roles": {"user": ["pupil"], "assistant": ["master"], "system": ["rules"]},
        "drop_system_message": True,
    }
    labelled = rows_of_both(config(datasets=[entry], sequence_len=100))
    assert 0 < len(labelled) < len(rows) and all(ours == theirs for ours, theirs in labelled)


@pytest.mark.parametrize("name", ["llama4", "qwen3", "qwen_25"])
def test_rows_with_tools_have_the_tokens_of_axolotl(folder, name):
    tokenizer = tokenizer_with(get_chat_template(name))
    tokenizer.save_pretrained("model")
    tiny_model("llama", vocab_size=len(tokenizer)).save_pretrained("model")
    write(folder / "train.jsonl", [tool_rows.row(chat) for chat in (tool_rows.TWO_CALLS, tool_rows.ONE)])
    entry = {"path": "train.jsonl", "type": "chat_template", "field_messages": "messages", "field_tools": "tools"}
    labelled = rows_of_both(config(datasets=[entry], sequence_len=4096))
    assert len(labelled) == 2
    for ours, theirs in labelled:
        # Axolotl leaves out an end of turn that is not the EOS, and what a template writes before the text of an answer.
        assert ours == theirs if name == "qwen_25" else ours > theirs


# What is refused


def assert_refused(message, call, given):
    with pytest.raises(SystemExit, match=f"^stepjepa: {message}") as raised:
        call(given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sample_packing": True}, "sample_packing True cannot be combined.*leave it out"),
        ({"attn_implementation": "flash_attention_2"}, "attn_implementation 'flash_attention_2'.*give sdpa or eager"),
    ],
)
def test_what_cannot_be_combined_is_one_line(changes, message):
    assert_refused(message, JEPAPlugin().load_datasets, DictDefault(config(**changes)))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"type": "alpaca"}, "datasets: train.jsonl: type "),
        ({"roles_to_train": ["human"]}, "datasets: train.jsonl: roles_to_train "),
        ({"chat_template": "chatml"}, "datasets: train.jsonl: chat_template "),
        ({"message_field_training": "train"}, "message_field_training: only whole messages of the assistant"),
    ],
)
def test_an_entry_that_asks_for_other_labels_is_one_line(folder, entry, message):
    chat = [{"from": "human", "value": "1 + 1?", "train": True}, {"from": "gpt", "value": "One.\n\nTwo."}]
    write(folder / "train.jsonl", [{"conversations": chat}])
    given = config()
    given["datasets"][0].update(entry)
    assert_refused(message, loaded, given)


def test_the_command_ends_without_a_traceback(folder):
    Path("config.yml").write_text(yaml.safe_dump(config(jepa={"predictorz": 2})))
    command = [sys.executable, "-m", "axolotl.cli.main", "train", "config.yml", "--launcher", "python"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "stepjepa: jepa: unknown option 'predictorz'" in done.stderr
