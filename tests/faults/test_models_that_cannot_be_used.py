"""What is given as a model and cannot serve as one gets a line of its own: a tokenizer that does not fit, weights that
broke. Folders that are no model are in tests/cli/test_errors.py."""

import shutil

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from stepjepa import check
from stepjepa.cli.main import main
from stepjepa.errors import ConfigError, DataError
from stepjepa.modeling.load import load_model, load_tokenizer
from support.answers import TEST
from support.models import tiny_model
from support.rows import step_rows, write
from support.tokenizers import byte_bpe_tokenizer, fresh
from support.training import STEPS, trainer_for


@pytest.fixture
def grown(tmp_path):
    """A tokenizer with one token more than its model, as objects and as the folder of a model."""

    def grow(token, **changes):
        plain = byte_bpe_tokenizer("chatml")
        tokenizer = fresh(plain)
        tokenizer.add_tokens([token], special_tokens=True)
        for name, value in changes.items():
            setattr(tokenizer, name, value)
        model = tiny_model("llama", vocab_size=len(plain))
        for part in (model, tokenizer):
            part.save_pretrained(tmp_path / "m")
        return tokenizer, model, len(plain)

    return grow


@pytest.mark.parametrize("what", ["eos_token", "chat_template"])
def test_a_tokenizer_that_has_grown_without_its_model(what, grown, tmp_path):
    text = "<|end_of_turn|>"
    template = byte_bpe_tokenizer("chatml").chat_template.replace("<|im_end|>", text)
    tokenizer, model, size = grown(text, **{what: text if what == "eos_token" else template})
    message = f"needs {size + 1:,} embeddings and the model has {size:,}"
    with pytest.raises(ConfigError, match=message):
        trainer_for(tmp_path, tokenizer, step_rows(8), model=model, predictors=1, **STEPS)
    with pytest.raises(ConfigError, match=message):
        load_model(str(tmp_path / "m"), tokenizer)
    with pytest.raises(ConfigError, match=message):
        check(step_rows(8), tmp_path / "m")


def test_a_row_with_such_a_token_is_skipped(grown, tmp_path):
    """As the image token of a model for text, which the tokenizer alone knows."""
    (tokenizer, model, size), rows = grown("<image>"), step_rows(8)
    rows[3]["messages"][-1]["content"] += " <image>"
    report = trainer_for(tmp_path, tokenizer, rows, model=model, predictors=1, **STEPS).data_reports["train"]
    assert report.rows_kept == 7 and dict(report.rows_skipped) == {"no_embedding": 1}
    assert f"<image> has id {size}, but the model has only {size} embeddings" in "".join(report.lines())
    assert check(rows, tmp_path / "m").tokens.data.rows_skipped["no_embedding"] == 1
    with pytest.raises(DataError, match=f"no embedding .*the model has only {size} embeddings"):
        trainer_for(tmp_path, tokenizer, rows[3:4], model=model, predictors=1, **STEPS)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A good model; one with a number in its last layer that is none; an adapter with infinity; the names of the tensors."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = load_tokenizer("tiny", [row["messages"][1]["content"] for row in TEST])
    tokenizer.chat_template = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    load_model("tiny", tokenizer).save_pretrained(folder / "good")
    tokenizer.save_pretrained(folder / "good")
    shutil.copytree(folder / "good", folder / "broken")
    weights = load_file(folder / "broken" / "model.safetensors")
    name = sorted(name for name in weights if "down_proj" in name)[-1]
    weights[name][3, 5] = float("nan")
    save_file(weights, folder / "broken" / "model.safetensors", metadata={"format": "pt"})
    shutil.copytree(folder / "broken", folder / "partial")
    del weights[name]
    save_file(weights, folder / "partial" / "model.safetensors", metadata={"format": "pt"})
    shutil.copytree(folder / "good", folder / "pickled")
    torch.save(weights, folder / "pickled" / "pytorch_model.bin")
    (folder / "pickled" / "model.safetensors").unlink()
    lora = LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear")
    adapter = get_peft_model(load_model(str(folder / "good"), tokenizer), lora)
    with torch.no_grad():
        next(p for name, p in adapter.named_parameters() if "lora_B" in name)[0, 0] = float("-inf")
    adapter.save_pretrained(folder / "adapter")
    return folder, {
        "broken": f"{folder / 'broken'}: {name} holds NaN or infinity (1 of ",
        "adapter": "lora_B.default.weight holds NaN or infinity (1 of ",
        "partial": f"{folder / 'partial'}: its files lack {name} (missing tensors: 1)",
        "pickled": "no file named model.safetensors",
    }


@pytest.mark.parametrize(
    ("model", "command"),
    [
        ("broken", "evaluate {model} {rows} --metric gsm8k answer_nll --max_new_tokens 2 --output_dir out"),
        ("broken", "analyze {rows} --models {good} {model} --output_dir out"),
        ("broken", "train --train_file {rows} --model_name {model} --max_steps 1 --output_dir out"),
        ("adapter", "evaluate {model} {rows} --metric gsm8k --output_dir out"),
        ("partial", "evaluate {model} {rows} --metric gsm8k --output_dir out"),
        ("pickled", "train --train_file {rows} --model_name {model} --max_steps 1 --output_dir out"),
    ],
)
def test_a_model_without_usable_weights_is_refused(model, command, models, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, tensors = models
    rows = write(tmp_path / "rows.jsonl", TEST[:4])
    assert main([word.format(model=folder / model, good=folder / "good", rows=rows) for word in command.split()]) == 2
    said = capsys.readouterr()
    (error,) = [line for line in said.err.splitlines() if ": error: " in line]
    assert tensors[model] in error and len(error) < 500
    assert " %" not in said.out and not list(tmp_path.glob("out*/*.json"))
