"""The steps of the reference rows, under the reference tokenizer and the real Llama 3 tokenizer."""

import json

import pytest
from transformers import AutoTokenizer

from stepjepa.data.chat import ChatRenderer
from stepjepa.data.encode import EncodeOptions, encode_dataset
from stepjepa.data.steps import make_splitter


@pytest.fixture(scope="module")
def golden(shared_dir):
    return shared_dir / "golden"


def encode(golden, tokenizer, objective="step_jepa", **options):
    settings = EncodeOptions(objective, make_splitter("separator"), **options)
    return encode_dataset(golden / "examples_steps.jsonl", tokenizer, ChatRenderer(tokenizer), settings)


def check(store, rows):
    assert len(store) == len(rows) == 8
    for example, want in zip(store, rows, strict=True):
        assert example.input_ids.tolist() == want["input_ids"]
        assert example.label_spans == ((want["assistant_first"], want["eot"] + 1),)
        (pair,) = example.pairs
        assert pair.source_end == pair.source_readout == want["step1_end"]
        assert pair.target_start == want["step1_end"] + 1
        assert pair.target_end - 1 == pair.target_readout == want["step2_end"]


def test_llama3(golden, llama3_tokenizer):
    rows = json.loads((golden / "step_boundaries_llama3.json").read_text())["llama3"]
    store, report = encode(golden, llama3_tokenizer)
    check(store, rows)
    ends = [(llama3_tokenizer.decode([e.input_ids[p.source_end]]), llama3_tokenizer.decode([e.input_ids[p.target_readout]]))
            for e in store for p in e.pairs]  # fmt: skip
    assert ends == [(row["step1_end_token"], row["step2_end_token"]) for row in rows]
    assert report.end_of_turn == "<|eot_id|>" and report.pairs == 8
    # The first step is the answer's, never a header, although the header and a question hold blank lines too.
    for example, row in zip(store, rows, strict=True):
        (pair,) = example.pairs
        assert row["assistant_first"] <= pair.source_end < pair.target_start
        header = llama3_tokenizer.decode(example.input_ids[row["assistant_first"] - 4 : row["assistant_first"]])
        assert header == "<|start_header_id|>assistant<|end_header_id|>\n\n"


def test_reference_tokenizer(golden):
    record = json.loads((golden / "step.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(golden / "tokenizer")
    store, report = encode(golden, tokenizer)
    check(store, record["examples"])
    lengths = [stop - start for example in store for start, stop in example.label_spans]
    assert lengths == record["lm"]["n_per_example"] and report.labelled_tokens == record["lm"]["n_tokens"] == 762
    whole, report = encode(golden, tokenizer, step_pairs="all")
    assert [len(e.pairs) + 1 for e in whole] == [row["n_steps"] for row in record["examples"]]
    assert report.pairs == sum(row["n_steps"] - 1 for row in record["examples"])
    for example in whole:
        for left, right in zip(example.pairs[:-1], example.pairs[1:], strict=True):
            assert right.source_end == left.target_end - 1 and right.target_start == left.target_end
        assert example.pairs[-1].target_end == example.label_spans[0][1] - 1


def test_question_and_answer_spans(golden):
    tokenizer = AutoTokenizer.from_pretrained(golden / "tokenizer")
    tube = json.loads((golden / "semantic_tube.json").read_text())
    official = json.loads((golden / "official.json").read_text())
    settings = EncodeOptions("llm_jepa", make_splitter("separator"))
    store, report = encode_dataset(golden / "examples_synth.jsonl", tokenizer, ChatRenderer(tokenizer), settings)
    assert [e.input_ids.tolist() for e in store] == [row["full"] for row in official["token_ids"]["0"]]
    pairs = [example.pairs[0] for example in store]
    assert [pair.source_end for pair in pairs] == [stop for _, stop in tube["user_start_end"]]
    assert [[p.target_start - 1, p.target_end - 1] for p in pairs] == tube["assistant_start_end"]
    (counted,) = {row["n_target_tokens"] for row in official["lm_by_label_rule"] if row["labels"] == "content_plus_eot"}
    assert report.labelled_tokens == counted
