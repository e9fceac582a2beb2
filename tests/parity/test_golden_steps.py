"""The steps of the reference rows, under the reference tokenizer and the real Llama 3 tokenizer."""

import json

from stepjepa.data.encode import encode_dataset
from stepjepa.data.template import ChatRenderer
from stepjepa.training.datasets import settings_for
from stepjepa.training.options import JEPAOptions


def encode(golden, tokenizer, objective="step_jepa", **options):
    settings = settings_for((), JEPAOptions(objective=objective, step_splitter="separator", **options))
    return encode_dataset(golden / "examples_steps.jsonl", tokenizer, ChatRenderer(tokenizer), settings)


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
    rows = json.loads((golden / "step_boundaries_llama3.json").read_text())["llama3"]
    store, report = encode(golden, llama3_tokenizer)
    check(store, rows)
    ends = [tuple(llama3_tokenizer.decode([e.trunk[at]]) for at in readouts(e, p)) for e in store for p in e.pairs]
    assert ends == [(row["step1_end_token"], row["step2_end_token"]) for row in rows]
    assert report.end_of_turn == "<|eot_id|>" and report.pairs == 8
    # The first step is the answer's, never a header, although the header and a question hold blank lines too.
    for example, row in zip(store, rows, strict=True):
        (pair,) = example.pairs
        assert row["assistant_first"] <= example.sees(pair.source) < example.view_on_trunk(pair.target).start
        header = llama3_tokenizer.decode(example.trunk[row["assistant_first"] - 4 : row["assistant_first"]])
        assert header == "<|start_header_id|>assistant<|end_header_id|>\n\n"


def test_reference_tokenizer(golden, golden_tokenizer):
    record = json.loads((golden / "step.json").read_text())
    store, report = encode(golden, golden_tokenizer)
    check(store, record["examples"])
    lengths = [stop - start for example in store for start, stop in example.labels]
    assert lengths == record["lm"]["n_per_example"] and report.labelled_tokens == record["lm"]["n_tokens"] == 762
    whole, report = encode(golden, golden_tokenizer, step_pairs="all")
    assert [len(e.pairs) + 1 for e in whole] == [row["n_steps"] for row in record["examples"]]
    assert report.pairs == sum(row["n_steps"] - 1 for row in record["examples"])
    for example in whole:
        targets = [example.view_on_trunk(pair.target) for pair in example.pairs]
        for left, right, pair in zip(targets[:-1], targets[1:], example.pairs[1:], strict=True):
            assert example.sees(pair.source) == left.stop - 1 and right.start == left.stop
        assert targets[-1].stop == example.labels[0].stop - 1


def test_question_and_answer_spans(golden, golden_tokenizer):
    tube = json.loads((golden / "semantic_tube.json").read_text())
    official = json.loads((golden / "official.json").read_text())
    settings = settings_for((), JEPAOptions(objective="llm_jepa"))
    rows, renderer = golden / "examples_synth.jsonl", ChatRenderer(golden_tokenizer)
    store, report = encode_dataset(rows, golden_tokenizer, renderer, settings)
    assert [e.trunk.tolist() for e in store] == [row["full"] for row in official["token_ids"]["0"]]
    assert [e.sees(e.pairs[0].source) for e in store] == [stop for _, stop in tube["user_start_end"]]
    targets = [example.view_on_trunk(example.pairs[0].target) for example in store]
    assert [[span.start - 1, span.stop - 1] for span in targets] == tube["assistant_start_end"]
    (counted,) = {row["n_target_tokens"] for row in official["lm_by_label_rule"] if row["labels"] == "content_plus_eot"}
    assert report.labelled_tokens == counted
