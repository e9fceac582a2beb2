"""What is drawn: controls, kept pairs, random pairs, spans."""

from __future__ import annotations

import pytest
import torch

from stepjepa.objectives.base import objective_of, random_target
from stepjepa.training.batches import Draw, DrawnExamples, EpochSampler, Mixture
from stepjepa.training.draws import keeps_pairs
from stepjepa.training.encoding import encode
from stepjepa.training.options import JEPAOptions
from support.rows import step_rows
from support.training import STEPS, Options, batch_of, logs_of, name_of, trained, trainer_for

TUBE: Options = {"objective": "semantic_tube", "tube_length_adjustment": "cosine_like", "tube_times": 2}


def options_of(**options) -> JEPAOptions:
    settings = JEPAOptions(**options)
    settings.check()
    return settings


# Controls


@pytest.mark.parametrize("options", [{"objective": "llm_jepa"}, STEPS, {**STEPS, "target_grad": False}], ids=name_of)
def test_shuffled_targets_are_those_of_other_examples(tmp_path, tokenizer, options):
    plain, shuffled = (trainer_for(tmp_path, tokenizer, control=c, **options) for c in ("none", "shuffled"))
    examples = list(plain.train_dataset.store)
    owner = [number for number, example in enumerate(examples) for _ in example.pairs]
    with torch.no_grad():
        output, moved = (t.model(batch=batch_of(t)) for t in (plain, shuffled))
    torch.testing.assert_close(moved.source_states, output.source_states)
    distance = (moved.target_states[:, None] - output.target_states[None]).abs().amax(dim=-1)
    assert (distance.min(dim=1).values < 1e-5).all(), "every target is one of the batch"
    assert (distance.min(dim=0).values < 1e-5).all(), "and each is used"
    nearest = distance.argmin(dim=1).tolist()
    assert len(set(nearest)) > 0.8 * len(owner), "equal texts have equal states"
    assert all(owner[new] != own for new, own in zip(nearest, owner, strict=True))
    logs = [trained(t)[0][0] for t in (plain, shuffled)]
    assert logs[0]["num_pairs"] == logs[1]["num_pairs"] and logs[0]["jepa_loss"] != logs[1]["jepa_loss"]
    assert logs[0]["lm_loss"] == pytest.approx(logs[1]["lm_loss"], rel=1e-6)


def test_shuffled_alone_in_a_batch_there_is_no_other_target(tmp_path, tokenizer):
    rows = sorted(step_rows(12), key=lambda row: row["messages"][1]["content"].count("\n\n"))
    assert [row["messages"][1]["content"].count("\n\n") for row in rows[:2]] == [0, 0]
    options = {"batch": 3, "train_sampling_strategy": "sequential", "predictor_head": "mlp"}
    for more in ({}, {"target_grad": False}):
        trainer = trainer_for(
            tmp_path, tokenizer, [*rows[:2], *rows[-4:]], control="shuffled", **options, **STEPS, **more
        )
        trainer.train()
        assert [log["num_pairs"] for log in logs_of(trainer)] == [0, 9]


def test_the_random_target_is_one_fixed_vector(tmp_path, tokenizer):
    trainer = trainer_for(tmp_path, tokenizer, control="random", seed=7, eval_rows=step_rows(5, seed=1), **STEPS)
    vector = random_target(32, 7, torch.device("cpu"))
    assert not torch.equal(vector, random_target(32, 8, torch.device("cpu"))) and 0.6 < vector.std() < 1.4
    for rows in (range(10), range(10, 20)):
        torch.manual_seed(len(rows))
        output = trainer.model(batch=batch_of(trainer, rows), step=0)
        targets = output.target_states
        assert len(targets) > 3 and all(torch.equal(target, vector) for target in targets)
    expected = 1 - torch.cosine_similarity(output.source_states, vector[None]).mean()
    batch = batch_of(trainer, range(10, 20))
    lm = output.lm_loss_sum / batch.label_ids.numel()
    loss = trainer.compute_loss(trainer.model, batch)
    assert loss.item() == pytest.approx((lm + 0.5 * expected).item(), rel=1e-5)
    before = trainer.evaluate()["eval_jepa_loss"]
    trainer.train()
    assert all(log["effective_rank"] == pytest.approx(1.0, abs=1e-3) for log in logs_of(trainer))
    assert trainer.evaluate()["eval_jepa_loss"] < before


# Draws


def views_of(example) -> tuple:
    """Where the views of every pair are on the trunk."""
    return tuple((example.sees(pair.source), example.view_on_trunk(pair.target)) for pair in example.pairs)


def kept_rows(dataset: DrawnExamples, draws: list[Draw]) -> dict[int, bool]:
    return {draw.row: bool(dataset[draw].pairs) for draw in draws}


def test_jepa_ratio_depends_on_seed_epoch_and_row_alone(tokenizer):
    options = options_of(objective="llm_jepa")
    store, _ = encode(step_rows(200), tokenizer, options)
    sampler = EpochSampler(len(store), 8, seed=5)
    patterns = {}
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        draws = list(sampler)
        whole = kept_rows(DrawnExamples(store, objective_of(options), 5, 0.3), draws)
        ranks = [
            kept_rows(DrawnExamples(store, objective_of(options), 5, 0.3), draws[rank::2][::-1]) for rank in (0, 1)
        ]
        resumed = kept_rows(DrawnExamples(store, objective_of(options), 5, 0.3), draws[100:])
        assert ranks[0] | ranks[1] == whole and len(whole) == 200
        assert all(whole[row] == kept for row, kept in resumed.items())
        assert whole == {row: keeps_pairs(5, epoch, row, 0.3) for row in range(200)}
        assert 40 <= sum(whole.values()) <= 80
        patterns[epoch] = [whole[row] for row in range(200)]
    assert patterns[0] != patterns[1]
    other = [keeps_pairs(6, 0, row, 0.3) for row in range(200)]
    assert patterns[0] != other


def test_jepa_ratio_in_training(tmp_path, tokenizer):
    options = {"objective": "llm_jepa", "jepa_ratio": 0.5, "num_train_epochs": 3, "max_steps": -1, "seed": 9}
    trainer = trainer_for(tmp_path, tokenizer, batch=20, eval_rows=step_rows(6, seed=1), **options)
    trainer.train()
    expected = [sum(keeps_pairs(9, epoch, row, 0.5) for row in range(20)) for epoch in range(3)]
    assert [log["num_pairs"] for log in logs_of(trainer)] == expected and len(set(expected)) > 1
    assert trainer.evaluate()["eval_num_pairs"] == 6


def test_jepa_ratio_zero_trains_as_regular(tmp_path, tokenizer):
    found = [
        trained(trainer_for(tmp_path, tokenizer, **options))[0]
        for options in ({"objective": "regular"}, {"objective": "llm_jepa", "jepa_ratio": 0.0, "views": "standalone"})
    ]
    assert [log["loss"] for log in found[1]] == pytest.approx([log["loss"] for log in found[0]], rel=1e-5)
    assert [log["num_pairs"] for log in found[1]] == [0, 0]


def test_random_pairs_differ_over_epochs_and_are_reproducible(tokenizer):
    options = options_of(objective="step_jepa", step_pairs="random", multi_horizon=[1, 2])
    store, _ = encode(step_rows(30), tokenizer, options)
    row = max(range(len(store)), key=lambda number: len(store[number].pairs))
    assert len(store[row].pairs) == 5

    def drawn(seed: int) -> list[tuple]:
        dataset = DrawnExamples(store, objective_of(options), seed)
        return [views_of(dataset[Draw(epoch, row)]) for epoch in range(60)]

    pairs = drawn(1)
    assert pairs == drawn(1) != drawn(2)
    assert all(len(found) == 1 for found in pairs)
    counts = [pairs.count((views,)) for views in views_of(store[row])]
    assert sum(counts) == 60 and min(counts) >= 4
    others = DrawnExamples(store, objective_of(options), 1)
    first, second = ([views_of(others[Draw(epoch, number)]) for number in range(30)] for epoch in (0, 1))
    assert first != second


def test_spans_differ_over_epochs_and_are_reproducible(tmp_path, tokenizer):
    trainers = [trainer_for(tmp_path, tokenizer, seed=seed, **TUBE) for seed in (1, 1, 2)]

    def spans(trainer, epoch: int) -> list[list[int]]:
        drawn = (trainer.train_dataset[Draw(epoch, row)] for row in range(20))
        return [[term.token for pair in example.pairs for term in pair.target.terms] for example in drawn]

    assert spans(trainers[0], 0) == spans(trainers[1], 0)
    assert spans(trainers[0], 0) != spans(trainers[0], 1) and spans(trainers[0], 0) != spans(trainers[2], 0)


def draws_of(mixture: Mixture, epochs: int, shuffle: bool = True) -> list[list[Draw]]:
    sampler = EpochSampler(mixture, 1, seed=3, shuffle=shuffle)
    found = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        found.append(list(sampler))
    return found


def test_weights_decide_how_much_of_each_data_set_is_drawn():
    assert Mixture.weighted([100, 30], [1, 1], "all_exhausted").counts == (100, 100)
    assert Mixture.weighted([100, 30], [1, 1], "first_exhausted").counts == (30, 30)
    assert Mixture.weighted([100, 30], [0.75, 0.25], "all_exhausted").counts == (100, 33)
    assert Mixture.weighted([100, 30], [10, 1], "first_exhausted").counts == (100, 10)


def test_every_row_of_a_mixture_is_drawn_equally_often():
    mixture = Mixture((10, 4), (5, 6))
    epochs = draws_of(mixture, 4)
    assert all(sum(draw.row < 10 for draw in epoch) == 5 and len(epoch) == 11 for epoch in epochs)
    every = [draw for epoch in epochs for draw in epoch]
    # 20 draws of the first ten rows are two passes, 24 of the last four are six; a pass holds each row once.
    assert sorted(draw for draw in every if draw.row < 10) == [Draw(p, row) for p in range(2) for row in range(10)]
    assert sorted(draw for draw in every if draw.row >= 10) == [Draw(p, row) for p in range(6) for row in range(10, 14)]
    assert {draw.row for draw in epochs[0] if draw.row < 10} != set(range(5)), "shuffled over the whole data set"
    assert epochs == draws_of(mixture, 4), "a function of seed and epoch alone"


def test_a_mixture_without_shuffling_is_even():
    (epoch,) = draws_of(Mixture((8, 4), (8, 4)), 1, shuffle=False)
    assert [draw.row for draw in epoch] == [0, 8, 1, 2, 9, 3, 4, 10, 5, 6, 11, 7]
