"""Plain text and token ids: blocks, splits, labels."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stepjepa.data.chat import row_to_messages
from stepjepa.data.encode import encode_dataset
from stepjepa.data.options import PairColumns
from stepjepa.data.template import ChatRenderer, plain_template
from stepjepa.data.token_rows import stream_row
from stepjepa.errors import ConfigError, RowError
from support.encoding import settings_of, views_of
from support.tokenizers import byte_bpe_tokenizer, fresh


@pytest.mark.parametrize("fixture", ["llama3_tokenizer", "mistral_tokenizer", "tekken_tokenizer", "bpe_tokenizer"])
def test_text_has_its_bos_and_eos_once(request, fixture):
    tokenizer = request.getfixturevalue(fixture)
    ids = stream_row({"text": "It is 17.\n\nYes."}, tokenizer).ids.tolist()
    own = tokenizer("It is 17.\n\nYes.")["input_ids"]
    assert ids == own + [tokenizer.eos_token_id]
    assert ids.count(tokenizer.eos_token_id) == 1


def test_token_ids_are_taken_as_they_are(bpe_tokenizer):
    assert stream_row({"input_ids": [5, 6, 7]}, bpe_tokenizer).ids.tolist() == [5, 6, 7]
    size = len(bpe_tokenizer)
    for wrong in ([5, size], [-1, 5]):
        with pytest.raises(RowError) as caught:
            stream_row({"input_ids": wrong}, bpe_tokenizer)
        assert caught.value.reason == "unknown_token"
    for wrong in ("abc", [], [1.5], [10**40], [[1], [1, 2]]):
        with pytest.raises(RowError) as caught:
            stream_row({"input_ids": wrong}, bpe_tokenizer)
        assert caught.value.reason == "content_not_text"
    for wrong in (7, ["a"], "\ud800", "  "):
        with pytest.raises(RowError):
            stream_row({"text": wrong}, bpe_tokenizer)


@pytest.mark.parametrize(("tokens", "lengths"), [(25, [10, 10, 5]), (21, [10, 10]), (2, [2])])
def test_blocks_lose_nothing_but_a_single_token(bpe_tokenizer, tokens, lengths):
    rows = [{"input_ids": list(range(tokens))}, {"input_ids": [1]}]
    store, report = encode(bpe_tokenizer, rows, objective="regular", max_length=10)
    assert [len(example.trunk) for example in store] == lengths and report.rows_skipped == {"nothing_to_learn": 1}
    assert np.concatenate([example.trunk for example in store]).tolist() == list(range(sum(lengths)))


def encode(tokenizer, rows, renderer=None, **options):
    options = {"objective": "split", "labels": "all", **options}
    return encode_dataset(rows, tokenizer, renderer, settings_of(**options))


def test_a_data_set_of_text_needs_no_template():
    tokenizer = fresh(byte_bpe_tokenizer())
    tokenizer.chat_template = None
    rows = [{"text": "Add the two numbers first. " * 9}, {"text": "x"}, {"text": ""}, {"question": "a", "answer": "b"}]
    with pytest.raises(ConfigError, match="no chat template"):
        encode(tokenizer, rows, max_length=16)
    store, report = encode(tokenizer, rows[:3], max_length=16)
    assert report.rows_kept == 2 and report.rows_skipped == {"nothing_to_learn": 1}
    assert report.examples == len(store) > 2 and f"{len(store)} examples" in "\n".join(report.lines())
    assert all(example.labels == ((1, len(example.trunk)),) for example in store)
    assert sum(len(example.trunk) for example in store) == report.tokens
    for example in store:
        if example.pairs:
            (view,), (rest,) = views_of(example), example.segments
            assert np.array_equal(rest.ids, example.trunk[view.end + 1 :]) and rest.position == 0
    assert report.examples_without_pairs["too_short_to_split"] == sum(not example.pairs for example in store)


def test_named_columns():
    columns = PairColumns("ctx", "endings", "label")
    row = {"ctx": "A man", "endings": ["runs.", "sings."], "label": "1"}
    assert [m["content"] for m in row_to_messages(row, None, columns)] == ["A man", "sings."]
    for label in ("2", "-1", "x", [1]):
        with pytest.raises(RowError) as caught:
            row_to_messages({**row, "label": label}, None, columns)
        assert caught.value.reason == "no_such_choice"
    with pytest.raises(RowError, match="no column 'ctx'"):
        row_to_messages({"endings": ["a"], "label": 0}, None, columns)


def test_plain_template(mistral_tokenizer, bpe_tokenizer):
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    for tokenizer, start in ((mistral_tokenizer, "<s>"), (bpe_tokenizer, "")):
        tokenizer = fresh(tokenizer)
        tokenizer.chat_template = plain_template(tokenizer)
        renderer = ChatRenderer(tokenizer)
        assert renderer.render(chat).text == start + "a\nb"
        assert renderer.prompt(chat[:1]) == start + "a\n"
        store, report = encode(tokenizer, [{"messages": chat}], renderer, objective="llm_jepa", labels="assistant")
        assert store[0].trunk[-1] == tokenizer.eos_token_id and report.pairs == 1


def test_label_modes(tmp_path, llama3_tokenizer):
    row = {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "What is 12 + 5?"},
                        {"role": "assistant", "content": "It is 17."}]}  # fmt: skip
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row))
    tokenizer, counts = llama3_tokenizer, {}
    for labels in ("assistant", "all", "reference"):
        options = settings_of("regular", labels=labels)
        store, report = encode_dataset(file, tokenizer, ChatRenderer(tokenizer), options)
        example, counts[labels] = store[0], report.labelled_tokens
        labelled = [i for start, stop in example.labels for i in range(start, stop)]
        text = tokenizer.decode(example.trunk[labelled])
        if labels == "assistant":
            assert text == "It is 17.<|eot_id|>"
        if labels == "all":
            assert labelled == list(range(1, len(example.trunk)))
        if labels == "reference":
            assert "<|eot_id|>" not in text and text.startswith("<|start_header_id|>system") and text.endswith("17.")
            assert len(example.labels) == 3
    assert counts["assistant"] < counts["reference"] == counts["all"] - 3
