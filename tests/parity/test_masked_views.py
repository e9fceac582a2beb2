"""Masked source views: which tokens are hidden when, and the loss against views that are masked and run one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stepjepa.data.types import MASKED
from stepjepa.errors import ConfigError
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.lora import lora_config
from stepjepa.objectives.base import objective_of
from stepjepa.training.datasets import encode
from stepjepa.training.options import JEPAOptions
from stepjepa.training.sampling import Draw, DrawnExamples, generator
from support.objectives import SEED, assert_near, gradient, layouts, losses, name_of, prepare, run_alone
from support.rows import step_rows
from support.training import SAVED, assert_resumes_alike, assert_train_alike, trainer_for

MASKS = {"objective": "llm_jepa", "mask_ratio": 0.4}
SPLIT = {"objective": "split", "mask_ratio": 0.4}


def in_a_loop(run, tokenizer, shuffled: bool = False) -> torch.Tensor:
    """The sum of 1 - cosine over rows of one turn, their views cut and masked by hand."""
    predictors, vocabulary = run.options.predictors, run.setup.vocabulary
    learned = list(range(vocabulary, vocabulary + predictors))
    if run.options.predictor_order == "descending":
        learned.reverse()
    header = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("user", "end", "assistant")}
    sources, targets = [], []
    for row, example in enumerate(run.examples):
        trunk = example.trunk.tolist()
        if run.options.objective == "split":
            start, stop, target_start, end, first = 0, len(trunk) // 2, len(trunk) // 2, len(trunk), 0
        else:
            start, target_start = trunk.index(header["user"]) + 1, trunk.index(header["assistant"]) + 1
            stop, end = trunk.index(header["end"]), len(trunk) - 1
            first = target_start + predictors
        random = generator(SEED, 0, row, 6)
        hidden = random.random(stop - start) < 0.4
        if run.options.mask_span:
            length = round(0.4 * (stop - start))
            begin = int(generator(SEED, 0, row, 6).integers(stop - start - length + 1))
            hidden = [begin <= place < begin + length for place in range(stop - start)]
        view = [vocabulary + predictors if hide else token for token, hide in zip(trunk[start:], hidden, strict=False)]
        sources.append(run_alone(run.model, [*trunk[:start], *view, *learned])[-1])
        targets.append(run_alone(run.model, trunk[target_start:end], first)[-1])
    if shuffled:
        targets = targets[1:] + targets[:1]
    if not run.options.target_grad:
        targets = [target.detach() for target in targets]
    pairs = zip(sources, targets, strict=True)
    return torch.stack([1 - torch.cosine_similarity(*pair, dim=0) for pair in pairs]).sum()


@pytest.mark.parametrize(
    "case",
    [
        {**MASKS, "predictors": 2},
        {**MASKS, "model": "gpt2", "mask_span": True},
        {**MASKS, "model": "mistral_sliding", "predictors": 1, "control": "shuffled"},
        {**SPLIT, "predictors": 2},
        {**SPLIT, "model": "gpt2", "mask_span": True, "target_grad": True},
    ],
    ids=name_of,
)
def test_every_layout_equals_a_plain_loop(tokenizer, case, monkeypatch):
    run = prepare(tokenizer, case, step_rows(4, seed=2))
    expected = in_a_loop(run, tokenizer, case.get("control") == "shuffled")
    wanted = gradient(run, expected)
    whole = prepare(tokenizer, {**case, "mask_ratio": 0.0}, step_rows(4, seed=2))
    plain, unmasked, lm_gradient = losses(whole, whole.collator()(whole.examples))
    for name, batch in layouts(run, monkeypatch):
        parts, found, of_lm = losses(run, batch)
        assert parts.jepa.item() == pytest.approx(expected.item(), rel=1e-4), name
        assert_near(found, wanted)
        # The chat is intact: the LM loss is that of a run without masks; the JEPA loss is another one.
        assert parts.lm.item() == pytest.approx(plain.lm.item(), rel=1e-6)
        assert of_lm.norm().item() == pytest.approx(lm_gradient.norm().item(), rel=1e-5)
    assert abs(plain.jepa.item() - expected.item()) > 1e-3


def drawn(tokenizer, rows: list, epochs: int = 1, seed: int = SEED, **options) -> tuple:
    """The examples as they are stored, and as every epoch draws them."""
    options = JEPAOptions(**{**MASKS, **options})
    options.check()
    store, _ = encode(rows, tokenizer, options)
    sampled = DrawnExamples(store, objective_of(options), seed)
    return store, [[sampled[Draw(epoch, row)] for row in range(len(store))] for epoch in range(epochs)]


def masks_of(tokenizer, epochs: int, **options) -> list[list[np.ndarray]]:
    """Which ids of every source are masked, by epoch and row."""
    _, examples = drawn(tokenizer, step_rows(20), epochs, **options)
    return [
        [segment.ids == MASKED for one in epoch for segment in one.segments if segment.maskable] for epoch in examples
    ]


def test_masks_are_sampled_by_seed_epoch_and_row(tokenizer):
    first, second = masks_of(tokenizer, 2)
    again = masks_of(tokenizer, 2)[1]
    assert all(np.array_equal(*both) for both in zip(second, again, strict=True))
    for other in (second, masks_of(tokenizer, 1, seed=SEED + 1)[0]):
        assert any(not np.array_equal(*both) for both in zip(first, other, strict=True))
    assert np.concatenate(first + second).mean() == pytest.approx(0.4, abs=0.05)
    for hidden in masks_of(tokenizer, 1, mask_span=True)[0]:
        assert np.diff(np.flatnonzero(hidden)).tolist() == [1] * (hidden.sum() - 1)
        assert hidden.sum() == round(0.4 * len(hidden))


@pytest.mark.parametrize(
    "options",
    [{}, {"last_token": -1}, {"views": "standalone"}, {"front_pred": True, "predictors": 1}, {"reverse_pred": True}],
    ids=name_of,
)
def test_all_of_the_content_and_nothing_else_is_masked_at_a_ratio_of_one(tokenizer, options):
    turns = [message for row in step_rows(2) for message in row["messages"]]
    store, [[example]] = drawn(tokenizer, [{"messages": turns}], **{"predictors": 0, **options, "mask_ratio": 1.0})
    role = "assistant" if "reverse_pred" in options else "user"
    contents = [turn["content"] for turn in turns if turn["role"] == role]
    for masked, whole, content in zip(example.segments[::2], store[0].segments[::2], contents, strict=True):
        hidden = masked.ids == MASKED
        assert tokenizer.decode(whole.ids[hidden]) == content
        assert np.array_equal(masked.ids[~hidden], whole.ids[~hidden])


@pytest.mark.parametrize("peft", [None, lora_config(4)], ids=["full", "lora"])
def test_a_resumed_run_masks_the_same_and_trains_the_mask_token(tmp_path, tokenizer, peft):
    def trainer(name, **more):
        return trainer_for(name, tokenizer, step_rows(16), peft=peft, **SAVED, **MASKS, predictors=1, **more)

    before, (whole, _) = trainer(tmp_path), assert_resumes_alike(trainer, tmp_path)
    moved = [causal_lm(run.model).jepa.predictors.weight.detach() for run in (before, whole)]
    assert (moved[0] - moved[1]).norm(dim=1).min() > 1e-4 and len(moved[0]) == 2
    with pytest.raises(ConfigError, match="mask_span"):
        trainer(tmp_path / "cut", mask_span=True).train(resume_from_checkpoint=True)


@pytest.mark.parametrize(("unset", "plain"), [("lbd", "regular"), ("mask_ratio", "llm_jepa")])
def test_without_a_weight_or_a_ratio_nothing_is_masked(tmp_path, tokenizer, unset, plain):
    assert_train_alike(tmp_path, tokenizer, step_rows(16), {**MASKS, unset: 0.0}, {"objective": plain})
