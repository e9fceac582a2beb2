"""Many pairs of one example as sums of single ones, and the inline form against a literal construction."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from stepjepa.data.types import Example
from stepjepa.modeling.extras import with_predictors
from support.objectives import TARGETS, Run, assert_near, chats, losses, name_of, prepare, run_alone
from support.rows import step_rows

# Many pairs of one example


def jepa_and_gradient(run: Run, examples: list[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    parts, gradient, _ = losses(run, run.collator()(examples))
    return parts.jepa, gradient


@pytest.mark.parametrize(
    ("loss", "predictors", "target_grad"),
    [("cosine", 0, True), ("cosine", 2, True), ("cosine", 2, False), ("l2", 2, False), ("mse", 0, False)]
    + [("smooth_l1", 2, True)],
)
def test_all_pairs_are_the_sum_of_single_pairs(tokenizer, loss, predictors, target_grad):
    case = {"objective": "step_jepa", "step_pairs": "all", "jepa_loss": loss, "predictor_head": "mlp"}
    run = prepare(tokenizer, {**case, "predictors": predictors, "target_grad": target_grad})
    single = [[example.with_pairs([pair])] for example in run.examples for pair in example.pairs]
    assert max(len(example.pairs) for example in run.examples) == 3 and len(single) > 8
    value, gradient = jepa_and_gradient(run, run.examples)
    values, gradients = zip(*(jepa_and_gradient(run, examples) for examples in single), strict=True)
    assert value.item() == pytest.approx(sum(values).item(), rel=1e-5)
    assert_near(gradient, sum(gradients))


def extras_gradients(run: Run) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Of the JEPA loss, on predictor rows and head, and on the model's own weights."""
    extras = run.model.jepa
    parts = [[extras.predictors.weight], [*extras.head.parameters()]]
    parts.append([one for name, one in run.model.named_parameters() if "jepa" not in name])
    jepa = losses(run, run.collator()(run.examples))[0].jepa
    found = [torch.autograd.grad(jepa, part, retain_graph=True, allow_unused=True) for part in parts]
    (rows,), head, own = found
    flat = [torch.cat([one.flatten() for one in part if one is not None]) for part in (head, own)]
    return (rows, flat[0]), flat[1]


@pytest.mark.parametrize("which", ["first", "all"])
@pytest.mark.parametrize("target", TARGETS, ids=name_of)
def test_several_horizons_are_the_sum_of_each(tokenizer, which, target):
    """Each with predictor tokens and a head of its own."""
    case = {"objective": "step_jepa", "step_pairs": which, "predictors": 2, "model": "gpt2", **target}
    both = prepare(tokenizer, {**case, "multi_horizon": [1, 2], "predictor_head": "mlp"})
    value, _ = jepa_and_gradient(both, both.examples)
    (rows, head), model_gradient = extras_gradients(both)
    each = [prepare(tokenizer, {**case, "horizon": horizon, "predictor_head": "mlp"}) for horizon in (1, 2)]
    counts = [sum(len(example.pairs) for example in run.examples) for run in (both, *each)]
    assert counts[0] == counts[1] + counts[2] and min(counts) > 2
    values, model_gradients = [], []
    for group, run in enumerate(each):
        with torch.no_grad():
            run.model.jepa.predictors.weight.copy_(both.model.jepa.predictors.weight[2 * group : 2 * group + 2])
            run.model.jepa.head.layers.load_state_dict(both.model.jepa.head.layers[group].state_dict())
        values.append(jepa_and_gradient(run, run.examples)[0])
        (own_rows, own_head), own = extras_gradients(run)
        model_gradients.append(own)
        assert_near(rows[2 * group : 2 * group + 2], own_rows)
        assert_near(head.chunk(2)[group], own_head)
    assert value.item() == pytest.approx(sum(values).item(), rel=1e-5)
    assert_near(model_gradient, sum(model_gradients))


@pytest.mark.parametrize("target_grad", [True, False])
def test_pairs_share_branches_and_targets(tokenizer, target_grad):
    """Four steps with horizons 1 and 2 give five pairs, each with its own branch, to three targets, and no more tokens."""
    row = next(row for row in step_rows(20) if row["messages"][1]["content"].count("\n\n") == 3)
    case = {"objective": "step_jepa", "multi_horizon": [1, 2], "step_pairs": "all", "predictors": 2}
    run = prepare(tokenizer, {**case, "target_grad": target_grad}, [row])
    (example,) = run.examples
    starts = sorted({example.view_on_trunk(pair.target).start for pair in example.pairs})
    answer_end = example.labels[0][1] - 1
    targets = answer_end - starts[0]  # steps 2 to 4, each once
    assert len(example.pairs) == 5 and len(starts) == 3
    batch = run.collator()(run.examples)
    assert batch.rows.input_ids.numel() == len(example.trunk) + 5 * 2 + (targets if target_grad else 0)
    if not target_grad:
        assert batch.target_rows.input_ids.numel() == targets
    assert len(batch.sources.positions.unique()) == 5 and len(batch.sources.positions) == 5
    assert len(batch.targets.positions.unique()) == 3 and len(batch.targets.positions) == 5


@pytest.mark.parametrize("predictors", [0, 2])
def test_the_question_predicts_every_step(tokenizer, predictors):
    """A source is the chat in front of the answer and its horizon's own predictors; the heads differ as well."""
    case = {"objective": "step_jepa", "step_pairs": "plan", "horizon": 3, "predictors": predictors, "model": "gpt2"}
    run = prepare(tokenizer, {**case, "predictor_head": "mlp", "jepa_loss": "mse"}, step_rows(3, seed=1))
    with torch.no_grad():
        output = run.model(batch=run.collator()(run.examples))
        found = iter(zip(output.source_states, output.target_states, strict=True))
        for example in run.examples:
            ids, answer = example.trunk.tolist(), example.labels[0].start
            for horizon, pair in enumerate(example.pairs):
                own = run.setup.predictor_ids[horizon * predictors : (horizon + 1) * predictors]
                step = example.view_on_trunk(pair.target)
                source = run_alone(run.model, ids[:answer] + own)[-1]
                target = run_alone(run.model, ids[step.start : step.stop], step.start + predictors)[-1]
                source = run.model.jepa.head.layers[horizon](source)
                for state, expected in zip(next(found), (source, target), strict=True):
                    torch.testing.assert_close(state, expected, atol=1e-5, rtol=0)
        assert next(found, None) is None and max(len(example.pairs) for example in run.examples) == 3


# Inline

INLINE = [
    {"objective": "step_jepa"},
    {"objective": "step_jepa", "step_pairs": "random"},
    {"objective": "step_jepa", "horizon": 2},
    {"objective": "llm_jepa"},
    {"objective": "llm_jepa", "readout": "mean", "readout_layer": 1},
]


def inline_lm_by_hand(run: Run, example: Example, predictors: list[int]) -> torch.Tensor:
    """Summed cross-entropy of the sequence with predictors behind the source and the target isolated, written out."""
    ids = example.trunk.tolist()
    labels = [-100] * len(ids)
    for start, stop in example.labels:
        labels[start:stop] = ids[start:stop]
    target = range(0)
    if example.pairs:
        (pair,) = example.pairs
        behind = example.sees(pair.source) + 1
        ids[behind:behind] = predictors
        labels[behind:behind] = [-100] * len(predictors)
        copied = example.view_on_trunk(pair.target)
        target = range(copied.start + len(predictors), copied.stop + len(predictors))
    mask = torch.zeros(1, 1, len(ids), len(ids), dtype=torch.bool)
    for q in range(len(ids)):
        for k in range(q + 1):
            mask[0, 0, q, k] = k in target if q in target else True
    positions = torch.arange(len(ids))[None]
    with with_predictors(run.model, torch.tensor([ids])) as known:
        logits = run.model(input_ids=known, attention_mask=mask, position_ids=positions).logits[0]
    return F.cross_entropy(logits[:-1, : run.setup.vocabulary], torch.tensor(labels[1:]), reduction="sum")


@pytest.mark.parametrize("model", ["llama", "gpt2"])
@pytest.mark.parametrize("predictors", [0, 1, 2])
@pytest.mark.parametrize("case", INLINE, ids=name_of)
def test_inline_reads_what_packed_reads_and_trains_the_lm_in_place(tokenizer, case, predictors, model):
    case = {**case, "predictors": predictors, "model": model, "target_grad": predictors != 1}
    inline = prepare(tokenizer, {**case, "forward": "inline"}, chats()[:-1])  # without the one of two turns
    packed = prepare(tokenizer, case, chats()[:-1])
    assert (inline.setup.forward, packed.setup.forward) == ("inline", "packed")
    batch = inline.collator()(inline.examples)
    parts, gradient, lm_gradient = losses(inline, batch)
    expected, expected_gradient, other_lm_gradient = losses(packed, packed.collator()(packed.examples))
    with torch.no_grad():
        states, expected_states = (run.model(batch=run.collator()(run.examples)) for run in (inline, packed))
    for name in ("source_states", "target_states"):
        assert getattr(expected_states, name).shape[0] > 2
        torch.testing.assert_close(getattr(states, name), getattr(expected_states, name), atol=1e-5, rtol=0)
    assert parts.jepa.item() == pytest.approx(expected.jepa.item(), rel=1e-5, abs=1e-5)
    assert_near(gradient, expected_gradient)
    assert batch.label_ids.numel() == sum(stop - start for e in inline.examples for start, stop in e.labels)
    assert not set(batch.label_ids.tolist()) & set(inline.setup.predictor_ids)

    order = inline.setup.predictor_ids
    order = order[::-1] if inline.options.predictor_order == "descending" else order
    by_hand = torch.stack([inline_lm_by_hand(inline, example, order) for example in inline.examples]).sum()
    by_hand.backward()
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in inline.model.parameters()]
    assert parts.lm.item() == pytest.approx(by_hand.item(), rel=1e-5)
    assert_near(lm_gradient, torch.cat([part.flatten() for part in found]))
    assert (lm_gradient - other_lm_gradient).norm() > 2e-2 * other_lm_gradient.norm()


def test_inline_equals_packed_where_there_is_no_pair_and_shuffles_as_packed_does(tokenizer):
    one_step = [row for row in step_rows(30) if "\n\n" not in row["messages"][1]["content"]][:3]
    for target_grad in (True, False):
        case = {"objective": "step_jepa", "control": "shuffled", "target_grad": target_grad}
        rows = [*one_step, *chats()[:-1]]
        runs = [prepare(tokenizer, {**case, "forward": forward}, rows) for forward in ("inline", "packed")]
        (inline, gradient, _), (packed, expected, _) = (losses(run, run.collator()(run.examples)) for run in runs)
        assert inline.jepa.item() == pytest.approx(packed.jepa.item(), rel=1e-5)
        assert_near(gradient, expected)
    assert len(one_step) == 3 and not any(example.pairs for example in runs[0].examples[:3])
    inline, packed = (losses(run, run.collator()(run.examples[:3]))[0] for run in runs)
    assert inline.lm.item() == pytest.approx(packed.lm.item(), rel=1e-6)


@pytest.mark.parametrize("objective", ["llm_jepa", "step_jepa"])
@pytest.mark.parametrize("target", TARGETS, ids=name_of)
def test_inline_takes_the_first_pair_of_a_chat_of_several_turns(tokenizer, objective, target):
    """It holds one pair per example, whether the targets have a gradient or not."""
    longer = [row["messages"] for row in step_rows(40) if "\n\n" in row["messages"][1]["content"]]
    turns = [{"messages": longer[number] + longer[number + 1]} for number in (0, 2)]
    case = {"objective": objective, "predictors": 2, **target}
    run = prepare(tokenizer, {**case, "forward": "inline"}, turns)
    several = prepare(tokenizer, case, turns).examples
    firsts = [example.with_pairs(example.pairs[:1]) for example in several]
    assert [len(example.pairs) for example in several] == [2, 2]
    assert [example.pairs for example in run.examples] == [example.pairs for example in firsts]
    parts, gradient, _ = losses(run, run.collator()(several))
    expected, expected_gradient, _ = losses(run, run.collator()(firsts))
    assert parts.jepa.item() == pytest.approx(expected.jepa.item(), rel=1e-6)
    assert_near(gradient, expected_gradient)
