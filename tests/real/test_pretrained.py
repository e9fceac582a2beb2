"""A pretrained model, SmolLM2-135M-Instruct, through training, export, resuming and evaluation, on rows of GSM8K."""

import importlib.util
import shutil

import pytest
import torch
from safetensors.torch import load_file

from stepjepa import evaluate, train
from support.pretrained import ANSWER, GGUF, MODEL, QUESTION, ROWS, answer_of, needs_model
from support.rows import write

pytestmark = needs_model
GENTLE = 1e-6  # a learning rate after which the model still knows its answers


def trained(folder, name, **options):
    """One step on all rows, unless the options say otherwise; the output folder."""
    output = folder / name
    options = {
        "objective": "step_jepa",
        "step_splitter": "lines",
        "max_steps": 1,
        "per_device_train_batch_size": len(ROWS),
        "learning_rate": GENTLE,
        "lr_scheduler_type": "constant",
        "disable_tqdm": True,
        "seed": 3,
        **options,
    }
    data = write(folder / "rows.jsonl", ROWS)
    train(model_name=str(options.pop("model_name", MODEL)), train_file=str(data), output_dir=str(output), **options)
    return output


def evaluated(model, folder):
    """The evaluation of a model on one question."""
    rows = write(folder / "test.jsonl", [{"question": QUESTION, "answer": ANSWER}])
    asked = {"metric": ["contains", "stopped"], "max_new_tokens": 48, "output_dir": str(folder / "evaluation")}
    return evaluate(model_name=str(model), test_file=str(rows), **asked)


def weights_of(folder):
    return load_file(folder / "model.safetensors")


def test_packed_equals_two_pass_in_gradients(tmp_path):
    # A step is the gradient.
    plain = {"optim": "sgd", "learning_rate": 1.0, "max_grad_norm": 0.0, "save_strategy": "no"}
    before = weights_of(MODEL)
    steps = {}
    for forward in ("packed", "two_pass"):
        after = weights_of(trained(tmp_path, forward, forward=forward, lbd=1.0, **plain))
        steps[forward] = {name: before[name] - after[name] for name in before}
    for name, packed in steps["packed"].items():
        difference = float((packed - steps["two_pass"][name]).norm())
        assert difference <= 1e-4 * float(packed.norm()), name


@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"lora": True}], ids=["full", "bf16", "lora"])
def test_an_export_still_answers_in_plain_transformers(tmp_path, options):
    output = trained(tmp_path, "run", save_strategy="no", **options)
    assert ANSWER in answer_of(output)


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="needs pip install 'stepjepa[quant]'")
def test_an_adapter_on_four_bits(tmp_path):
    output = trained(tmp_path, "run", save_strategy="no", lora=True, load_in_4bit=True)
    assert evaluated(output, tmp_path).value("contains") == 1


def test_a_resumed_run_ends_with_the_same_weights(tmp_path):
    options = {"max_steps": 4, "save_steps": 2, "learning_rate": 1e-4, "lr_scheduler_type": "linear", "bf16": True}
    complete = trained(tmp_path, "complete", **options)
    resumed = tmp_path / "resumed"
    resumed.mkdir()
    shutil.copytree(complete / "checkpoint-2", resumed / "checkpoint-2")
    trained(tmp_path, "resumed", resume_from_checkpoint=True, **options)
    after = weights_of(resumed)
    assert all(torch.equal(value, after[name]) for name, value in weights_of(complete).items())


def test_evaluation_asks_with_the_chat_template(tmp_path):
    result = evaluated(MODEL, tmp_path)
    assert result.value("contains") == 1 and result.value("stopped") == 1


@pytest.mark.skipif(not GGUF.is_file(), reason=f"no file {GGUF}; make smollm2 fetches it")
def test_a_gguf_file_is_trained_exported_and_evaluated(tmp_path):
    assert evaluated(GGUF, tmp_path).value("contains") == 1
    loaded, converted = weights_of(trained(tmp_path, "gguf", model_name=GGUF, save_strategy="no")), weights_of(MODEL)
    assert loaded.keys() == converted.keys()
    assert all(torch.allclose(value, converted[name], atol=1e-4) for name, value in loaded.items())
    assert ANSWER in answer_of(tmp_path / "gguf")
