"""`answer_nll` against transformers' own loss and against the evaluation loss of training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from stepjepa.data.sources import RowSource
from stepjepa.data.tokens import Prompter
from stepjepa.data.types import Example
from stepjepa.errors import DataError
from stepjepa.evaluation import nll
from stepjepa.evaluation.questions import SystemPrompt, read_questions
from stepjepa.evaluation.run import evaluate_model
from stepjepa.modeling.load import load_model
from stepjepa.modeling.lora import lora_config
from support.models import ARCHITECTURES, tiny_model
from support.rows import step_rows
from support.training import trainer_for

ROWS = step_rows(24)


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
    found = nll.answer_losses(model, examples, ends=ends)
    for example, (total, tokens, end_total, end_tokens) in zip(examples, found, strict=True):
        ids = torch.from_numpy(example.trunk.astype(np.int64))
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0].double()
        (start, stop), log_p = example.labels[0], logits.log_softmax(-1)
        expected = -sum(float(log_p[place - 1, ids[place]]) for place in range(start, stop))
        assert tokens == stop - start and total == pytest.approx(expected, rel=1e-5)
        ending = [place for place in range(start, stop) if ids[place] in ends]
        expected = -sum(float(log_p[place - 1, ids[place]]) for place in ending)
        assert end_tokens == len(ending) and end_total == pytest.approx(expected, rel=1e-5)


def trained(tmp_path, tokenizer, **options):
    """A trainer after a step."""
    model = load_model("tiny", tokenizer, seed=1)
    trainer = trainer_for(tmp_path, tokenizer, ROWS, model=model, eval_rows=ROWS[:9], max_steps=1, **options)
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    "options",
    [
        {"objective": "regular", "max_length": 30},
        {
            "objective": "step_jepa",
            "predictors": 2,
            "system_prompt": "Be brief.",
            "peft": lora_config(4),
            "forward": "two_pass",
        },
    ],
)
def test_it_is_the_evaluation_loss_of_training(tmp_path, tokenizer, options):
    trainer = trained(tmp_path, tokenizer, **options)
    expected = trainer.evaluate()["eval_lm_loss"]
    shared = {"max_length": trainer.args.max_length, "system_prompt": options.get("system_prompt")}
    trainer.model.train()
    for size in (2, 9):
        vocabulary = trainer.setup.vocabulary
        found = evaluate_model(
            trainer.model, tokenizer, ROWS[:9], ["answer_nll"], batch_size=size, vocabulary=vocabulary, **shared
        )
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
    inside = evaluate_model(
        trainer.model, tokenizer, ROWS[:5], metrics, max_new_tokens=12, vocabulary=trainer.setup.vocabulary
    )
    model, own = (kind.from_pretrained(tmp_path / "out") for kind in (AutoModelForCausalLM, AutoTokenizer))
    kept = evaluate_model(model, own, ROWS[:5], metrics, max_new_tokens=12, vocabulary=trainer.setup.vocabulary)
    texts = [one.generated_response for one in inside.predictions]
    assert texts == [one.generated_response for one in kept.predictions]
    assert any(texts) and not any("predictor" in text for text in texts)
    assert kept.value("answer_nll") == pytest.approx(inside.value("answer_nll"), abs=1e-5)


def likelihood(tokenizer, rows, **more):
    questions = read_questions(RowSource(rows), SystemPrompt(None, True, ""))
    return nll.AnswerLikelihood(questions, Prompter(tokenizer), load_model("tiny", tokenizer, seed=2), 4, **more)


def test_answers_that_are_cut_and_rows_that_cannot_be_used(tokenizer, monkeypatch):
    rows = [*ROWS[:2], {"messages": [{"role": "user", "content": "x " * 60}, {"role": "assistant", "content": "y"}]}]
    found = likelihood(tokenizer, rows, max_length=40)
    assert set(found.examples) == {0, 1} and found.report.rows_skipped == {"no_room_for_answer": 1}
    losses = [nll.AnswerLoss(0, 3.0, 2, 2.5, 1), nll.AnswerLoss(1, 1.0, 4, 0.0, 0)]
    summary = nll.summarise(losses, found.report)
    assert summary["value"] == pytest.approx(4 / 6) and summary["row_mean"] == pytest.approx((1.5 + 0.25) / 2)
    content, end = (nll.summarise(losses, found.report, name) for name in ("content_nll", "end_nll"))
    assert (content["value"], content["tokens"], content["n"]) == (1.5 / 5, 5, 2)
    assert (end["value"], end["tokens"], end["n"], end["row_mean"]) == (2.5, 1, 1, 2.5)
    assert content["row_mean"] == (0.5 + 0.25) / 2
    assert summary["n"] == 2 and summary["tokens"] == 6 and summary["skipped"] == {"no_room_for_answer": 1}
    assert summary["answers_truncated"] == found.report.answers_truncated > 0
    monkeypatch.setattr(nll, "max_positions", lambda model: 5)
    with pytest.raises(DataError, match="none of .* rows have an answer for"):
        likelihood(tokenizer, rows, max_length=40)


def test_the_end_of_turn_and_the_rest_are_the_answer(tokenizer):
    found = likelihood(tokenizer, ROWS[:4])
    for batch in found.compute():
        assert all(loss.end_tokens == 1 and loss.of("content_nll") != loss.of("answer_nll") for loss in batch)
    rows = ROWS[:4]
    result = evaluate_model(found.model, tokenizer, rows, ["end_nll", "answer_nll", "content_nll"], batch_size=4)
    n = result.metrics["answer_nll"]["tokens"]
    total = result.value("content_nll") * (n - 4) + result.value("end_nll") * 4
    assert total == pytest.approx(result.value("answer_nll") * n, rel=1e-6)
    assert not result.predictions and set(result.answer_nll[0]) >= {"content_nll", "end_nll", "answer_nll"}
