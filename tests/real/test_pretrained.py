"""A pretrained model, SmolLM2-135M-Instruct, through training, export, resuming and evaluation, on rows of GSM8K."""

import importlib.util
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepjepa import evaluate, train
from stepjepa.generation.drafting import Drafter
from stepjepa.generation.local import generate_batch
from stepjepa.modeling.extras import add_extras
from stepjepa.modeling.forward import loss_view
from stepjepa.objectives.base import drafting_objective
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


def weights_of(folder):
    return load_file(folder / "model.safetensors")


def test_packed_equals_two_pass_in_gradients(tmp_path):
    plain = {
        "optim": "sgd",
        "learning_rate": 1.0,
        "max_grad_norm": 0.0,
        "save_strategy": "no",
    }  # a step is the gradient
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
    answers = write(tmp_path / "test.jsonl", [{"question": QUESTION, "answer": ANSWER}])
    out = str(tmp_path / "evaluation")
    result = evaluate(
        model_name=str(output), test_file=str(answers), metric=["contains"], max_new_tokens=24, output_dir=out
    )
    assert result.value("contains") == 1


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
    rows = write(tmp_path / "test.jsonl", [{"question": QUESTION, "answer": ANSWER}])
    out = str(tmp_path / "evaluation")
    result = evaluate(
        model_name=str(MODEL), test_file=str(rows), metric=["contains", "stopped"], max_new_tokens=48, output_dir=out
    )
    assert result.value("contains") == 1 and result.value("stopped") == 1


@pytest.mark.parametrize("objective", ["next_latent", "multi_token"])
def test_drafts_of_fresh_heads_change_no_answer(objective):
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    chats = [[{"role": "user", "content": text}] for text in (QUESTION, ROWS[1]["question"])]
    prompts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    stop_ids = [tokenizer.eos_token_id]
    chosen = drafting_objective({"objective": objective})
    vocabulary, width = model.get_input_embeddings().weight.shape
    add_extras(model, None, objective=chosen.modules(width, vocabulary))
    drafter = Drafter(model, chosen, loss_view(model, vocabulary), 3)
    drafter.check()
    plain = generate_batch(model, tokenizer, prompts, 20, stop_ids)
    assert [one.stopped for one in plain] == [True, False] and ANSWER in plain[0].text
    for prompt, one in zip(prompts, plain, strict=True):
        assert drafter.write(prompt, 20, stop_ids)[0] == one.token_ids + stop_ids * one.stopped


@pytest.mark.skipif(not GGUF.is_file(), reason=f"no file {GGUF}; make smollm2 fetches it")
def test_a_gguf_file_is_trained_exported_and_evaluated(tmp_path):
    rows = write(tmp_path / "test.jsonl", [{"question": QUESTION, "answer": ANSWER}])
    out = str(tmp_path / "evaluation")
    result = evaluate(model_name=str(GGUF), test_file=str(rows), metric=["contains"], max_new_tokens=24, output_dir=out)
    assert result.value("contains") == 1

    loaded, converted = weights_of(trained(tmp_path, "gguf", model_name=GGUF, save_strategy="no")), weights_of(MODEL)
    assert loaded.keys() == converted.keys()
    assert all(torch.allclose(value, converted[name], atol=1e-4) for name, value in loaded.items())
    assert ANSWER in answer_of(tmp_path / "gguf")
