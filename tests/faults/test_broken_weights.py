"""A model whose training broke is refused by whoever would score it, in one line that names the tensor."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from stepjepa.cli.main import main
from stepjepa.data.sources import RowSource
from stepjepa.errors import ConfigError
from stepjepa.modeling.extras import PREDICTORS_FILE, PredictorHead, attach_saved
from stepjepa.modeling.load import check_finite, load_model, load_tokenizer
from stepjepa.study.stages import score_model
from support.answers import TEST, write


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    tokenizer = load_tokenizer("tiny", [row["messages"][1]["content"] for row in TEST])
    load_model("tiny", tokenizer).save_pretrained(folder)
    tokenizer.chat_template = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def broken(whole, tmp_path):
    """The model with one number of its last layer that is none."""
    folder = tmp_path / "broken"
    shutil.copytree(whole, folder)
    weights = load_file(folder / "model.safetensors")
    name = sorted(name for name in weights if "down_proj" in name)[-1]
    weights[name][3, 5] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder, name


@pytest.mark.parametrize(
    "command",
    [
        "evaluate {model} {rows} --metric gsm8k answer_nll --max_new_tokens 2 --output_dir {out}",
        "analyze --energy {rows} --model_name {model} --predictors 0 --output_file {out}.jsonl",
        "analyze {rows} --models {model} --output_dir {out}",
        "analyze {rows} --models {whole} --base_model {model} --output_dir {out}",
        "inspect {rows} --model_name {model} --html {out}.html",
        "train --train_file {rows} --model_name {model} --max_steps 1 --output_dir {out}",
    ],
)
def test_a_model_with_nan_is_refused(command, broken, whole, tmp_path, capsys):
    model, tensor = broken
    rows, out = write(tmp_path / "rows.jsonl", TEST[:4]), tmp_path / "out"
    words = [word.format(model=model, whole=whole, rows=rows, out=out) for word in command.split()]
    assert main(words) == 2
    said = capsys.readouterr()
    errors = [line for line in said.err.splitlines() if ": error: " in line]
    assert len(errors) == 1 and f"{model}: {tensor} holds NaN or infinity (1 of " in errors[0] and len(errors[0]) < 500
    assert " %" not in said.out and not (tmp_path / "out.html").exists()
    assert not list(tmp_path.glob("out/*.json"))


def test_a_study_refuses_to_score_nan(broken):
    with pytest.raises(ConfigError, match="holds NaN or infinity"):
        score_model(broken[0], RowSource(TEST[:2]), {"gsm8k": {}}, max_new_tokens=2)


def test_an_adapter_and_a_head_with_infinity_are_refused(whole, tmp_path, capsys):
    from peft import LoraConfig, get_peft_model

    tokenizer = load_tokenizer(str(whole))
    model = get_peft_model(
        load_model(str(whole), tokenizer), LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear")
    )
    with torch.no_grad():
        next(p for name, p in model.named_parameters() if "lora_B" in name)[0, 0] = float("-inf")
    model.save_pretrained(tmp_path / "adapter")
    rows = write(tmp_path / "rows.jsonl", TEST[:2])
    assert (
        main(["evaluate", str(tmp_path / "adapter"), rows, "--metric", "gsm8k", "--output_dir", str(tmp_path / "o")])
        == 2
    )
    assert "lora_B" in (error := capsys.readouterr().err) and "holds NaN or infinity" in error
    plain = load_model(str(whole), tokenizer)
    width = plain.config.hidden_size
    head = {f"head.{name}": value for name, value in PredictorHead("linear", width, 0).state_dict().items()}
    head["head.layers.0.weight"][0, 0] = float("inf")
    save_file(head, tmp_path / PREDICTORS_FILE)
    with pytest.raises(ConfigError, match=f"{PREDICTORS_FILE}: head.layers.0.weight holds NaN or infinity"):
        attach_saved(plain, tmp_path)


def test_large_finite_weights_are_no_fault():
    """A sum may overflow where no term is infinite, and a mean may hide a NaN between infinities."""
    layer = torch.nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight.fill_(3e38)
    check_finite(layer, "layer")
    layer = torch.nn.Linear(4, 4).half()
    with torch.no_grad():
        layer.weight.fill_(60_000.0)
        check_finite(layer, "layer")
        layer.bias[0], layer.bias[1] = float("inf"), float("-inf")
    with pytest.raises(ConfigError, match="layer: bias holds"):
        check_finite(layer, "layer")


def test_a_loss_that_is_no_number_is_said_and_written_as_null(tmp_path):
    from stepjepa.evaluation.nll import AnswerLoss
    from stepjepa.evaluation.predictions import read_predictions, record_lines
    from stepjepa.evaluation.run import Answers
    from stepjepa.evaluation.scoring import EvaluationResult

    answers = Answers()
    answers.add_losses([AnswerLoss(0, float("nan"), 2)])
    found = {"kind": "loss", "value": float("nan"), "n": 1}
    metrics = {"answer_nll": found, "again": {**found, "value": None}}
    lines = str(EvaluationResult(metrics, {}, {"skipped": {}})).splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines] == ["no finite number (1 rows)"] * 2
    record = {"question": "a", "generated_response": "b", "scores": {"own": float("nan")}, "answer_nll": float("inf")}
    for name in ("a.jsonl", "a.json"):
        (tmp_path / name).write_bytes(b"".join(record_lines(tmp_path / name, [record])))
        text = (tmp_path / name).read_text()
        assert "NaN" not in text and "Infinity" not in text
        written = json.loads(text)
        assert (written if name == "a.jsonl" else written[0])["scores"] == {"own": None}
        (again,) = read_predictions(tmp_path / name)
        assert again.scores["own"] != again.scores["own"]
