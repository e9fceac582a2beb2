"""`answer_nll` against transformers' own loss and against the evaluation loss of training."""

import math

import numpy as np
import pytest
import torch

from stepjepa.data.sources import RowSource
from stepjepa.data.tokens import Prompter
from stepjepa.data.types import Example
from stepjepa.errors import DataError
from stepjepa.evaluation import nll
from stepjepa.evaluation.nll import TokenLoss
from stepjepa.evaluation.questions import SystemPrompt, read_questions
from stepjepa.evaluation.run import evaluate_model
from stepjepa.modeling.load import load_model
from stepjepa.modeling.lora import lora_config
from stepjepa.modeling.parts import vocabulary_size
from support.models import ARCHITECTURES, tiny_model
from support.rows import step_rows
from support.training import trainer_for

ROWS = step_rows(24)
STEP = {"objective": "step_jepa", "predictors": 2}


def made_up(lengths):
    draw = np.random.default_rng(0)
    return [Example(draw.integers(3, 90, n).astype(np.int32), ((n // 3, n - 1),)) for n in lengths]


# Rotary, learned and windowed positions, experts, scaled logits, a head with a bias.
@pytest.mark.parametrize("name", "llama gpt2 gemma3_sliding mixtral cohere_scaled_logits phi_biased_head".split())
def test_padding_changes_nothing(name):
    """Row by row without padding, through the model's own forward and logits."""
    model = tiny_model(name, ARCHITECTURES[name][2][0])
    examples = made_up((20, 7, 13))
    ends = [int(example.trunk[example.labels[0][1] - 1]) for example in examples[:2]]
    found = nll.answer_losses(model, examples, vocabulary_size(model), ends)
    for example, losses in zip(examples, found, strict=True):
        ids = torch.from_numpy(example.trunk.astype(np.int64))
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0].double()
        (start, stop), log_p = example.labels[0], logits.log_softmax(-1)
        expected = -sum(float(log_p[place - 1, ids[place]]) for place in range(start, stop))
        assert losses["answer_nll"] == (pytest.approx(expected, rel=1e-5), stop - start)
        ending = [place for place in range(start, stop) if ids[place] in ends]
        expected = -sum(float(log_p[place - 1, ids[place]]) for place in ending)
        assert losses["end_nll"] == (pytest.approx(expected, rel=1e-5), len(ending))


def trained(tmp_path, tokenizer, **options):
    model = load_model("tiny", tokenizer, seed=1)
    trainer = trainer_for(tmp_path, tokenizer, ROWS, model=model, eval_rows=ROWS[:9], max_steps=1, **options)
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    "options",
    [
        {"objective": "regular", "max_length": 30},
        {**STEP, "system_prompt": "Be brief.", "peft": lora_config(4), "forward": "two_pass"},
    ],
)
def test_it_is_the_evaluation_loss_of_training(tmp_path, tokenizer, options):
    trainer = trained(tmp_path, tokenizer, **options)
    expected = trainer.evaluate()["eval_lm_loss"]
    shared = {"max_length": trainer.args.max_length, "system_prompt": options.get("system_prompt")}
    trainer.model.train()
    for size in (2, 9):
        found = evaluate_model(trainer.model, tokenizer, ROWS[:9], ["answer_nll"], batch_size=size, **shared)
        assert found.value("answer_nll") == pytest.approx(expected, abs=1e-5)
    assert trainer.model.training and not found.predictions and len(found.answer_nll) == 9
    assert found.metrics["answer_nll"]["perplexity"] == pytest.approx(math.exp(expected), rel=1e-4)


def test_a_model_that_is_being_trained_answers_as_its_export(tmp_path, tokenizer):
    """The predictor tokens, which a kept export has in its vocabulary, are never generated."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trainer = trained(tmp_path, tokenizer, objective="step_jepa", predictors=3, keep_predictors=True)
    with torch.no_grad():  # now a predictor token is the likeliest everywhere
        states = trainer.model.model(torch.tensor([[1, 5, 6]])).last_hidden_state
        trainer.model.jepa.predictors.weight[-1] = 50 * torch.nn.functional.normalize(states.mean((0, 1)), dim=0)
    trainer.save_model()
    metrics = ["exact", "answer_nll"]
    inside = evaluate_model(trainer.model, tokenizer, ROWS[:5], metrics, max_new_tokens=12)
    model, own = (kind.from_pretrained(tmp_path / "out") for kind in (AutoModelForCausalLM, AutoTokenizer))
    kept = evaluate_model(model, own, ROWS[:5], metrics, max_new_tokens=12)
    texts = [one.generated_response for one in inside.predictions]
    assert texts == [one.generated_response for one in kept.predictions]
    assert any(texts) and not any("predictor" in text for text in texts)
    assert kept.value("answer_nll") == pytest.approx(inside.value("answer_nll"), abs=1e-5)


def test_answers_that_are_cut_and_rows_that_cannot_be_used(tokenizer, monkeypatch):
    rows = [*ROWS[:2], {"messages": [{"role": "user", "content": "x " * 60}, {"role": "assistant", "content": "y"}]}]
    questions = read_questions(RowSource(rows), SystemPrompt(None, True, ""))
    model = load_model("tiny", tokenizer, seed=2)
    examples, report = nll.encode_answers(questions, Prompter(tokenizer), model, 40)
    assert set(examples) == {0, 1} and report.rows_skipped == {"no_room_for_answer": 1}
    summary = nll.summarise([TokenLoss(3.0, 2), TokenLoss(1.0, 4), TokenLoss(0.0, 0)], report)
    assert summary["value"] == pytest.approx(4 / 6) and summary["row_mean"] == pytest.approx((1.5 + 0.25) / 2)
    assert (summary["n"], summary["tokens"], summary["skipped"]) == (2, 6, {"no_room_for_answer": 1})
    assert summary["answers_truncated"] == report.answers_truncated > 0
    monkeypatch.setattr(nll, "max_positions", lambda model: 5)
    with pytest.raises(DataError, match="none of .* rows have an answer for"):
        nll.encode_answers(questions, Prompter(tokenizer), model, 40)


def test_the_end_of_turn_and_the_rest_are_the_answer(tokenizer):
    model = load_model("tiny", tokenizer, seed=2)
    result = evaluate_model(model, tokenizer, ROWS[:4], ["end_nll", "answer_nll", "content_nll"], batch_size=3)
    assert not result.predictions and [row["index"] for row in result.answer_nll] == [0, 1, 2, 3]
    for row in result.answer_nll:
        content, n = row["content_nll"], row["answer_tokens"]
        assert row["end_tokens"] == 1 and content != row["answer_nll"]
        assert content * (n - 1) + row["end_nll"] == pytest.approx(row["answer_nll"] * n, rel=1e-6)
    for name, ends in (("answer_nll", 0), ("content_nll", 1)):
        counts = [row["answer_tokens"] - ends for row in result.answer_nll]
        total = sum(row[name] * count for row, count in zip(result.answer_nll, counts, strict=True))
        assert result.value(name) == pytest.approx(total / sum(counts), rel=1e-6)
