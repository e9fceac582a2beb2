"""Energies and likelihoods of solutions, held against separate forward passes of the texts with plain transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from stepjepa.analysis.energy import best_of, first_of_each, shuffled_energies
from stepjepa.analysis.models import encode_solutions
from stepjepa.analysis.options import best_of_lines
from stepjepa.analysis.states import read_states
from stepjepa.data.chat import ChatRenderer
from stepjepa.errors import DataError
from stepjepa.forest.collate import ForestCollator, TwoPassCollator
from stepjepa.forest.layout import label_indices
from stepjepa.losses.distances import cosine_loss
from stepjepa.modeling.extras import predictor_names
from support.encoding import settings_of, views_of
from support.models import add_to_vocabulary, tiny_model
from support.tokenizers import fresh, ids_of

SOLUTIONS = [
    ("Sum?", ["One.\n\n", "Two is more.\n\n", "Three."]),
    ("One step?", ["Yes."]),
    ("Two?", ["First of all.\n\n", "Second."]),
]


def row(question, steps, before=()):
    chat = [{"role": "user", "content": question}, {"role": "assistant", "content": "".join(steps)}]
    return {"messages": [*before, *chat]}


def encode(tokenizer, rows, **changes):
    placed = [(f"row {number}", one) for number, one in enumerate(rows)]
    settings = settings_of(step_pairs="all", **changes)
    return encode_solutions(placed, tokenizer, ChatRenderer(tokenizer), settings)


def last_state(model, ids, first=0):
    positions = torch.arange(first, first + len(ids))[None]
    with torch.no_grad():
        output = model(input_ids=torch.tensor([ids]), position_ids=positions, output_hidden_states=True)
    return output.hidden_states[-1][0, -1]


def prompt_of(question):
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def by_hand(model, tokenizer, predictors, question, steps):
    """Source and target states of every pair, and the log-likelihood of the answer and its end of turn."""
    prompt, pairs = prompt_of(question), []
    for number in range(len(steps) - 1):
        before = ids_of(tokenizer, prompt + "".join(steps[: number + 1]))
        source = last_state(model, [*before, *predictors])
        pairs.append((source, last_state(model, ids_of(tokenizer, steps[number + 1]), len(before) + len(predictors))))
    start, ids = len(ids_of(tokenizer, prompt)), ids_of(tokenizer, prompt + "".join(steps) + "<|im_end|>")
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :, : len(tokenizer) - len(predictors)]
    scores = logits.log_softmax(-1)
    return pairs, sum(float(scores[place - 1, ids[place]]) for place in range(start, len(ids))), len(ids) - start


@pytest.fixture(params=["llama", "gpt2"])
def kept(request, bpe_tokenizer):
    """A model with two predictors, and its tokenizer."""
    model = tiny_model(request.param, vocab_size=len(bpe_tokenizer), initializer_range=0.2)
    tokenizer = fresh(bpe_tokenizer)
    tokenizer.add_tokens(predictor_names(2), special_tokens=True)
    return model, tokenizer, tuple(add_to_vocabulary(model, 2, seed=3))


@pytest.mark.parametrize("collator", [ForestCollator, TwoPassCollator])
def test_states_and_likelihoods_are_those_of_separate_passes(kept, collator):
    model, tokenizer, predictors = kept
    encoded, report = encode(tokenizer, [row(*one) for one in SOLUTIONS], predictors=2)
    assert [one.steps for one in encoded] == [tuple(steps) for _, steps in SOLUTIONS]  # separators included
    assert [one.sources for one in encoded] == [(0, 1), (), (0,)] and report.examples_without_pairs.total() == 1
    examples = [one.example for one in encoded]
    vocabulary = len(tokenizer) - 2
    views, likelihoods = read_states(model, "m", collator(predictors, 0), examples, vocabulary=vocabulary, batch_size=2)
    read_sources, read_targets = torch.from_numpy(views[:, 0])
    hand = [by_hand(model, tokenizer, predictors, *one) for one in SOLUTIONS]
    pairs = [pair for found, _, _ in hand for pair in found]
    sources, targets = (torch.stack(side) for side in zip(*pairs, strict=True))
    assert sources.abs().max() > 0.1 and (sources - targets).abs().max() > 0.1
    torch.testing.assert_close(read_sources, sources, atol=1e-5, rtol=0)
    torch.testing.assert_close(read_targets, targets, atol=1e-5, rtol=0)
    energies = 1 - F.cosine_similarity(sources, targets)
    found = cosine_loss(read_sources, read_targets)
    torch.testing.assert_close(found, energies, atol=1e-5, rtol=0)
    assert likelihoods.tolist() == pytest.approx([total for _, total, _ in hand], abs=1e-4)
    assert [len(label_indices(one)[0]) for one in examples] == [count for _, _, count in hand]


def test_what_of_a_chat_is_the_solution(bpe_tokenizer):
    """The last answer alone; a horizon of 2; steps that the row lists; a chat that has no room for its answer."""
    before = row("Hi?", ["Hello.\n\n", "There."])["messages"]
    (one,), _ = encode(bpe_tokenizer, [row("Sum?", ["One.\n\n", "Two.\n\n", "Three."], before)])
    assert one.steps == ("One.\n\n", "Two.\n\n", "Three.") and one.sources == (0, 1)
    ((start, stop),) = one.example.labels
    assert bpe_tokenizer.decode(one.example.trunk[start:stop]) == "One.\n\nTwo.\n\nThree.<|im_end|>"
    texts = [bpe_tokenizer.decode(one.example.trunk[v.start : v.stop]) for v in views_of(one.example)]
    assert texts == ["Two.\n\n", "Three."]
    (one,), _ = encode(bpe_tokenizer, [row("?", ["a.\n\n", "b.\n\n", "c."])], horizon=2)
    assert one.sources == (0,) and len(one.steps) == 3
    listed = {**row("?", ["a. ", "b. ", "c."]), "steps": ["a.", "b.", "c."]}
    (one,), _ = encode(bpe_tokenizer, [listed], step_splitter="list")
    assert [step.strip() for step in one.steps] == ["a.", "b.", "c."] and one.sources == (0, 1)
    found, report = encode(bpe_tokenizer, [row("?" * 50, ["a."]), row("?", ["a."])], max_length=24)
    assert found[0] is None and found[1] is not None and dict(report.rows_skipped) == {"no_room_for_answer": 1}


def test_shuffled_energies_by_hand():
    """Four pairs of three questions on the axes: distances are 1 but to the same direction, 0, and the opposite one, 2."""
    source = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1]])
    target = torch.tensor([[1.0, 0], [1, 0], [0, 2], [-1, 0]])
    groups = np.array([0, 0, 1, 2])
    found = shuffled_energies(cosine_loss, source, target, groups, 100, seed=0)
    # pair 0 against targets 2, 3: (1 + 2) / 2; 1: (0 + 1) / 2; 2 against 0, 1, 3: (0 + 0 + 2) / 3; 3: (1 + 1 + 0) / 3
    np.testing.assert_allclose(found, [1.5, 0.5, 2 / 3, 2 / 3], atol=1e-6)
    one = shuffled_energies(cosine_loss, source, target, np.arange(4), 1, seed=1)
    assert np.isnan(one).sum() == 1  # the pair whose own target is the only one that was sampled
    assert np.isnan(shuffled_energies(cosine_loss, source, target, np.zeros(4), 4, seed=1)).all()


# Best of N


def line(right, answer=None, energy=None, likelihood=None):
    signals = {"energy": energy, "relative": energy, "shuffled": None, "log_likelihood": likelihood}
    return {"correct": right, "answer": answer, "log_likelihood_mean": likelihood, **signals}


@pytest.mark.parametrize(
    ("rule", "name", "values", "index"),
    [
        ("energy", "energy", [0.3, 0.1, 0.2], 1),  # the lowest
        ("energy", "energy", [0.2, 0.1, 0.1], 1),  # equal ones: the first
        ("energy", "energy", [None, 0.9, None], 1),  # none comes after all
        ("likelihood_mean", "likelihood", [-3.0, -1.0, -2.0], 1),  # the highest
        ("likelihood_mean", "likelihood", [None, -50.0], 1),
        ("majority", "answer", ["1", "2", "2"], 1),
        ("majority", "answer", ["1", "2", "2.0", "1"], 0),  # a tie: the one that came first
        ("majority", "answer", ["$5", "6", "5 dollars"], 0),
        ("majority", "answer", [None, None, "7"], 2),  # who has no answer does not vote
    ],
)
def test_choosing(rule, name, values, index):
    """The rule is right where the line that it must choose alone is right."""
    lines = [line(number == index, **{name: value}) for number, value in enumerate(values)]
    assert best_of(lines, len(lines))["rules"][rule]["value"] == 1.0


def test_first_of_each():
    assert first_of_each(["a", "b", "a", "c", "b", "a"], 2) == ([[0, 2], [1, 4]], 1)
    with pytest.raises(DataError, match="no question has 4 solutions, the most is 3"):
        first_of_each(["a", "b", "a", "a"], 4)


def test_auroc_within_questions():
    questions = [
        [line(True, energy=0.1), line(False, energy=0.2), line(False, energy=0.1)],  # (1 + 1/2) / 2
        [line(False, energy=0.1), line(True, energy=0.2), line(True, energy=0.2)],  # 0
        [line(True, energy=0.3), line(False, energy=None), line(False, energy=None)],  # 1
        [line(True, energy=9.0), line(True, energy=0.0), line(True, energy=0.0)],  # all right: says nothing
    ]
    found = best_of([one for question in questions for one in question], 3)["auroc"]["energy"]
    assert found["value"] == pytest.approx((0.75 + 0 + 1) / 3) and (found["questions"], found["pairs"]) == (3, 6)
    assert 0 <= found["low"] < found["value"] < found["high"] <= 1
    nothing = {"value": None, "low": None, "high": None, "questions": 0, "pairs": 0}
    assert best_of(questions[3], 3)["auroc"]["energy"] == nothing
    likely = best_of([line(True, likelihood=-1.0), line(False, likelihood=-2.0)], 2)["auroc"]
    assert likely["likelihood_sum"]["value"] == 1.0 and likely["energy"]["value"] == 0.5


def test_every_rule():
    """Two of four questions are mixed."""
    found = best_of([
        line(False, "1", 0.1, -3.0), line(True, "2", 0.2, -1.0), line(True, "2", 0.3, -2.0),
        line(True, "5", 0.1, -9.0), line(False, "6", 0.2, -1.0), line(False, "6", 0.3, -2.0),
        *[line(True, "7", 0.1, -1.0)] * 3, *[line(False, "8", 0.1, -1.0)] * 3,
    ], 3)  # fmt: skip
    assert (found["questions"], found["samples"], found["mixed"]) == (4, 3, 2)
    rules = {name: rule["value"] for name, rule in found["rules"].items()}
    half = dict.fromkeys("first majority relative energy shuffled likelihood_mean likelihood_sum".split(), 0.5)
    assert rules == {"random": pytest.approx((2 / 3 + 1 / 3 + 1 + 0) / 4), **half, "oracle": 0.75}
    energy = found["rules"]["energy"]
    # right: no, yes, yes, no; chance 2/3, 1/3, 1, 0
    assert energy["against_random"]["value"] == pytest.approx((-2 / 3 + 2 / 3) / 4)
    assert energy["against_majority"]["value"] == 0.0 and energy["against_majority"]["low"] < 0
    assert found["rules"]["oracle"]["against_random"]["value"] == pytest.approx(0.25)
    assert "against_majority" not in found["rules"]["majority"]
    lines = list(best_of_lines(found))
    assert lines[0].startswith("best of 3 on 4 questions; 2 have right and wrong solutions")
    assert any(text.startswith("lowest energy ") and "50.0 (15.0 to 85.0)" in text for text in lines)
    one = best_of([line(True, "1", None, -1.0)], 1)  # no interval, and no crash
    assert one["rules"]["random"] == {"value": 1.0, "low": None, "high": None} and list(best_of_lines(one))
