"""Against reference values computed elsewhere (see the README beside them): LM and JEPA losses of a fixed model, steps and
spans of the rows, the published values through the trainer, and the semantic tube."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from stepjepa.forest.collate import ForestCollator, TwoPassCollator
from stepjepa.losses.distances import combine, cosine_loss, mse_loss, turning_angle
from stepjepa.modeling.extras import predictor_names
from stepjepa.modeling.forward import attach_forest_forward
from stepjepa.objectives.base import objective_of
from stepjepa.objectives.semantic_tube import draws_spans
from stepjepa.training.config import JEPAConfig
from stepjepa.training.datasets import encode
from stepjepa.training.options import JEPAOptions
from stepjepa.training.trainer import JEPATrainer
from support.tube import tube_of_spans, tube_options


@pytest.fixture(scope="session")
def golden(shared_dir):
    """The folder of the reference values."""
    if not (shared_dir / "golden" / "official.json").is_file():
        pytest.skip("no reference values here")
    return shared_dir / "golden"


@pytest.fixture(scope="session")
def golden_tokenizer(golden):
    return AutoTokenizer.from_pretrained(golden / "tokenizer")


def read(golden, name):
    return json.loads((golden / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def model(golden):
    model = AutoModelForCausalLM.from_pretrained(golden / "llama_tiny", dtype=torch.float32).eval()
    attach_forest_forward(model, model.config.vocab_size)
    return model


def encode_rows(golden, tokenizer, **options):
    """The examples of the reference rows, and the report on them."""
    settings = JEPAOptions(**{"objective": "step_jepa", "predictors": 0, **options})
    settings.check()
    return encode(golden / "examples_steps.jsonl", tokenizer, settings)


def test_step_jepa_cases(golden, golden_tokenizer, model):
    cases, expected = read(golden, "step")["cases"], read(golden, "step")["lm"]
    assert len(cases) >= 8
    for case in cases:
        ids = [golden_tokenizer.convert_tokens_to_ids(f"<|predictor_{k}|>") for k in range(1, case["K"] + 1)]
        if case["order"] == "descending":
            ids.reverse()
        options = {"jepa_loss": case["loss"], "predictors": case["K"]}
        examples = list(encode_rows(golden, golden_tokenizer, **options)[0])
        labels = sum(stop - start for example in examples for start, stop in example.labels)
        assert labels == expected["n_tokens"]
        for collator in (ForestCollator(tuple(ids), 0), TwoPassCollator(tuple(ids), 0)):
            model.zero_grad()
            output = model(batch=collator(examples))
            assert output.lm_loss_sum.item() / labels == pytest.approx(expected["loss_token_mean"], rel=2e-5)
            objective = objective_of(JEPAOptions(objective="step_jepa", **options))
            loss = objective.distances(output.source_states, output.target_states).mean()
            assert loss.item() == pytest.approx(case["jepa_loss"], rel=2e-5, abs=1e-6), case
            if "cosine_per_example" in case:
                cosines = torch.cosine_similarity(output.source_states, output.target_states, dim=-1)
                torch.testing.assert_close(cosines, torch.tensor(case["cosine_per_example"]), atol=1e-5, rtol=1e-4)
            loss.backward()
            norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
            assert norm.item() == pytest.approx(case["grad_norm"], rel=1e-4), case


# The steps of the reference rows, under the reference tokenizer and the real Llama 3 tokenizer


def readouts(example, pair):
    """The tokens of the trunk at which both views are read."""
    (source,), (target,) = pair.source.terms, pair.target.terms
    return source.token, example.view_on_trunk(pair.target).start + target.token


def check(store, rows):
    assert len(store) == len(rows) == 8
    for example, want in zip(store, rows, strict=True):
        assert example.trunk.tolist() == want["input_ids"]
        assert example.labels == ((want["assistant_first"], want["eot"] + 1),)
        (pair,) = example.pairs
        assert example.sees(pair.source) == pair.source.terms[0].token == want["step1_end"]
        assert example.view_on_trunk(pair.target) == (want["step1_end"] + 1, want["step2_end"] + 1)
        assert readouts(example, pair) == (want["step1_end"], want["step2_end"])


def test_llama3(golden, llama3_tokenizer):
    rows = read(golden, "step_boundaries_llama3")["llama3"]
    store, report = encode_rows(golden, llama3_tokenizer, step_splitter="separator")
    check(store, rows)
    ends = [tuple(llama3_tokenizer.decode([e.trunk[at]]) for at in readouts(e, p)) for e in store for p in e.pairs]
    assert ends == [(row["step1_end_token"], row["step2_end_token"]) for row in rows]
    assert report.end_token == "<|eot_id|>" and report.pairs == 8
    # The first step is the answer's, never a header, although the header and a question hold blank lines too.
    for example, row in zip(store, rows, strict=True):
        (pair,) = example.pairs
        assert row["assistant_first"] <= example.sees(pair.source) < example.view_on_trunk(pair.target).start
        header = llama3_tokenizer.decode(example.trunk[row["assistant_first"] - 4 : row["assistant_first"]])
        assert header == "<|start_header_id|>assistant<|end_header_id|>\n\n"


def test_reference_tokenizer(golden, golden_tokenizer):
    record = read(golden, "step")
    store, report = encode_rows(golden, golden_tokenizer, step_splitter="separator")
    check(store, record["examples"])
    lengths = [stop - start for example in store for start, stop in example.labels]
    assert lengths == record["lm"]["n_per_example"] and report.labelled_tokens == record["lm"]["n_tokens"] == 762
    whole, report = encode_rows(golden, golden_tokenizer, step_splitter="separator", step_pairs="all")
    assert [len(e.pairs) + 1 for e in whole] == [row["n_steps"] for row in record["examples"]]
    assert report.pairs == sum(row["n_steps"] - 1 for row in record["examples"])
    for example in whole:
        targets = [example.view_on_trunk(pair.target) for pair in example.pairs]
        for left, right, pair in zip(targets[:-1], targets[1:], example.pairs[1:], strict=True):
            assert example.sees(pair.source) == left.stop - 1 and right.start == left.stop
        assert targets[-1].stop == example.labels[0].stop - 1


def test_question_and_answer_spans(golden, golden_tokenizer):
    tube = read(golden, "semantic_tube")
    official = read(golden, "official")
    rows = golden / "examples_synth.jsonl"
    store, report = encode(rows, golden_tokenizer, JEPAOptions(objective="llm_jepa"))
    assert [e.trunk.tolist() for e in store] == [row["full"] for row in official["token_ids"]["0"]]
    assert [e.sees(e.pairs[0].source) for e in store] == [stop for _, stop in tube["user_start_end"]]
    targets = [example.view_on_trunk(example.pairs[0].target) for example in store]
    assert [[span.start - 1, span.stop - 1] for span in targets] == tube["assistant_start_end"]
    (counted,) = {row["n_target_tokens"] for row in official["lm_by_label_rule"] if row["labels"] == "content_plus_eot"}
    assert report.labelled_tokens == counted


# The published values through the trainer


@pytest.fixture
def trainer_for(golden, golden_tokenizer, tmp_path):
    def make(objective, model=None, max_length=192, **options):
        size = {"per_device_eval_batch_size": 8, "per_device_train_batch_size": 8, "max_length": max_length}
        config = JEPAConfig(str(tmp_path), objective=objective, disable_tqdm=True, **size, **options)
        model = model or AutoModelForCausalLM.from_pretrained(golden / "llama_tiny", dtype=torch.float32)
        rows = golden / "examples_synth.jsonl"
        return JEPATrainer(model, config, eval_dataset=rows, processing_class=golden_tokenizer)

    return make


@pytest.mark.parametrize("forward", ["packed", "two_pass"])
def test_standalone_views(golden, trainer_for, forward):
    official = read(golden, "official")
    assert len(official["losses"]) >= 8 and {str(case["predictors"]) for case in official["losses"]} == {"0", "2"}
    for case in official["losses"]:
        count = case["predictors"]
        own = {"predictors": count, "last_token": case["last_token"], "jepa_loss": case["loss"]}
        trainer = trainer_for("llm_jepa", views="standalone", forward=forward, **own)
        metrics = trainer.evaluate()
        assert metrics["eval_num_pairs"] == 8
        assert metrics["eval_jepa_loss"] == pytest.approx(case["jepa_loss"], abs=1e-5), case
        # This tokenizer knows predictor tokens; the rows begin as its vocabulary's and have ids of their own.
        predictors = trainer.processing_class.convert_tokens_to_ids(predictor_names(count))[::-1]
        for example, row in zip(trainer.eval_dataset.store, official["token_ids"][str(count)], strict=True):
            views = [index for segment in example.segments for index in segment.tokens(predictors).tolist()]
            assert example.trunk.tolist() == row["full"]
            assert views == row["user"] + row["assistant"]


def test_label_rules(golden, trainer_for):
    values = {row["labels"]: row for row in read(golden, "official")["lm_by_label_rule"]}
    for labels, rule in (("assistant", "content_plus_eot"), ("reference", "collator_pad_is_eot")):
        trainer = trainer_for("regular", labels=labels)
        assert trainer.evaluate()["eval_lm_loss"] == pytest.approx(values[rule]["plain_hf_loss"], rel=2e-6)
        assert trainer.data_reports["eval"].labelled_tokens == values[rule]["n_target_tokens"]


def test_gradients(golden, trainer_for):
    weights = {"jepa_only": (0.0, 1.0), "gamma1_lbd0.5": (1.0, 0.5)}
    for case in read(golden, "official")["gradients"]:
        if case["what"] not in weights:
            continue
        gamma, lbd = weights[case["what"]]
        trainer = trainer_for("llm_jepa", views="standalone", predictors=1, gamma=gamma, lbd=lbd, last_token=-2)
        batch = trainer.data_collator(list(trainer.eval_dataset.store))
        counts = trainer._step_counts([batch])
        # The reference labels are the answer without its end of turn: 74 of our 82 labelled tokens.
        ids = trainer.processing_class.convert_tokens_to_ids("<|eot_id|>")
        kept = batch.label_ids != ids
        batch = replace(batch, label_ids=batch.label_ids[kept], label_positions=batch.label_positions[kept])
        counts["lm_loss"] = torch.tensor(batch.label_ids.numel())
        loss = trainer.compute_loss(trainer.model, batch, num_items_in_batch=counts)
        assert loss.item() == pytest.approx(case["total_loss"], rel=2e-5)
        loss.backward()
        gradients = [p.grad.norm() for p in trainer.model.parameters() if p.grad is not None]
        assert torch.stack(gradients).norm().item() == pytest.approx(case["grad_norm"], rel=1e-4)
        row = trainer.model.jepa.predictors.weight.grad[0]
        assert row.norm().item() == pytest.approx(case["grad_norm_predictor_1_row"], rel=1e-4)


def test_semantic_tube_without_draws(golden, trainer_for):
    modes = {"linear e2e": "e2e", "curvature": "curvature"}
    cases = [case for case in read(golden, "semantic_tube")["cases"] if case["case"] in modes]
    assert len(cases) == 2
    for case in cases:
        metrics = trainer_for("semantic_tube", tube_mode=modes[case["case"]]).evaluate()
        assert metrics["eval_jepa_loss"] == pytest.approx(case["jepa_loss"], rel=2e-5)


def nanogpt(golden):
    """The reference nanoGPT as the GPT-2 of transformers, which stores its matrices transposed."""
    from safetensors.torch import load_file

    values = read(golden, "nanogpt")
    sizes = values["meta"]["config"]
    own = {name: sizes[name] for name in ("vocab_size", "n_embd", "n_layer", "n_head")}
    own |= dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0)
    model = GPT2LMHeadModel(GPT2Config(n_positions=sizes["block_size"], activation_function="gelu", **own))
    weights = load_file(golden / "nanogpt_tiny.safetensors")
    vector = weights.pop("pred_token").flatten()
    matrices = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
    weights = {name: value.T.contiguous() if name.endswith(matrices) else value for name, value in weights.items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not [name for name in missing if name != "lm_head.weight"], missing
    assert all(name.endswith("attn.bias") for name in unexpected), unexpected
    model.tie_weights()
    return model, vector, values


@pytest.mark.parametrize("forward", ["packed", "two_pass"])
def test_split(golden, trainer_for, forward):
    model, vector, values = nanogpt(golden)
    for case in values["cases"]:
        own = {"predictors": case["k"], "split_ratio": case["split"], "same_predictor": True, "forward": forward}
        trainer = trainer_for("split", model, max_length=40, **own)
        if case["k"]:
            trainer.model.jepa.predictors.weight.data[:] = vector
        store = trainer.eval_dataset.store
        assert [example.trunk.tolist() for example in store] == values["x"]
        batch = trainer.data_collator(list(store))
        with torch.no_grad():
            output = trainer.model(batch=batch)
        torch.testing.assert_close(output.source_states[0, :4], torch.tensor(case["z_pred_first4"]), atol=1e-5, rtol=0)
        torch.testing.assert_close(output.target_states[0, :4], torch.tensor(case["z_tgt_first4"]), atol=1e-5, rtol=0)
        assert trainer.evaluate()["eval_jepa_loss"] == pytest.approx(case["jepa_cosine"], abs=1e-5)


# Semantic tube: spans of the published code, our combinations and our losses

# The reference's case -> our options and distance. Its "all" is not a sampler: the chat from its second token on counts
# as the user's content.
CASES = {
    "random_span default": (tube_options(), cosine_loss),
    "random_span draw_both": (tube_options(sampler="draw_both"), cosine_loss),
    "random_span times 3": (tube_options(times=3), cosine_loss),
    "random_span max_length 8": (tube_options(max_length=8), cosine_loss),
    "random_span all": (tube_options(), cosine_loss),
    "random_span cosine_like": (tube_options(length_adjustment="cosine_like"), cosine_loss),
    "random_span mse": (tube_options(), mse_loss),
    "linear e2e": (tube_options(mode="e2e"), cosine_loss),
    "curvature": (tube_options(mode="curvature"), turning_angle),
}


@pytest.fixture(scope="module")
def reference(golden):
    """The reference values and the states (T, D) of its rows after the final norm, each row run alone."""
    model = AutoModelForCausalLM.from_pretrained(golden / "llama_tiny", dtype=torch.float32).eval()
    rows = read(golden, "official")["token_ids"]["0"]
    with torch.no_grad():
        states = [model.model(torch.tensor([row["full"]])).last_hidden_state[0] for row in rows]
    values = read(golden, "semantic_tube")
    assert [case["case"] for case in values["cases"]] == list(CASES)
    return values, states


def contents(values, case):
    """Token spans (user, answer) of each row; the reference's bounds are [first - 1, last]."""
    bounds = zip(values["user_start_end"], values["assistant_start_end"], strict=True)
    spans = [((u0 + 1, u1 + 1), (a0 + 1, a1 + 1)) for (u0, u1), (a0, a1) in bounds]
    return [((1, user[1]), answer) for user, answer in spans] if case["case"] == "random_span all" else spans


def tubes(values, case, options):
    rows = contents(values, case)
    recorded = iter(case["spans_start_end_fulllength"])
    for user, answer in rows:
        drawn = [next(recorded) for _ in range(options.tube_times)] if draws_spans(options) else []
        assert all(n == user[1] - user[0] + answer[1] - answer[0] for _, _, n in drawn)
        yield tube_of_spans(user, answer, [(s, t) for s, t, _ in drawn], options)
    assert next(recorded, None) is None


def weighted_mean(tubes, states, distance):
    losses, weights = [], []
    for tube, states_TD in zip(tubes, states, strict=True):
        pairs = len(tube.weight)
        sides = [
            combine(states_TD, *map(torch.from_numpy, (side.position, side.coefficient, side.pair)), pairs)
            for side in (tube.source, tube.target)
        ]
        losses.append(distance(*sides))
        weights.append(torch.from_numpy(tube.weight))
    loss, weight = torch.cat(losses), torch.cat(weights)
    return ((loss * weight).sum() / weight.sum()).item()


@pytest.mark.parametrize("name", CASES)
def test_loss_equals_the_published_code(reference, name):
    """And not where every content is read one token too early, nor with equal weights where they differ: the reference is
    told from the plain mean over all spans, and over all angles of the batch."""
    values, states = reference
    options, distance = CASES[name]
    case = next(case for case in values["cases"] if case["case"] == name)
    found, expected = list(tubes(values, case, options)), case["jepa_loss"]
    assert weighted_mean(found, states, distance) == pytest.approx(expected, rel=2e-5, abs=1e-6)
    moved = [torch.roll(states_TD, 1, dims=0) for states_TD in states]
    assert weighted_mean(found, moved, distance) != pytest.approx(expected, rel=1e-3)
    if name in ("random_span cosine_like", "curvature"):
        flat = [tube._replace(weight=np.ones_like(tube.weight)) for tube in found]
        assert weighted_mean(flat, states, distance) != pytest.approx(expected, rel=5e-5)
