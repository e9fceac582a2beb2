"""Rows of plain text and of token ids: blocks, splits, labels, which may stand in the row; and modes of labels."""

import numpy as np
import pytest

from stepjepa.data.encode import encode_dataset
from stepjepa.data.template import ChatRenderer, plain_template
from stepjepa.data.token_rows import stream_row
from stepjepa.errors import ConfigError, DataError, RowError
from support.encoding import settings_of, views_of
from support.tokenizers import byte_bpe_tokenizer, fresh


def encode(tokenizer, rows, renderer=None, **options):
    options = {"objective": "split", "labels": "all", **options}
    return encode_dataset(rows, tokenizer, renderer, settings_of(**options))


@pytest.mark.parametrize("fixture", ["llama3_tokenizer", "mistral_tokenizer", "tekken_tokenizer", "bpe_tokenizer"])
def test_text_has_its_bos_and_eos_once(request, fixture):
    tokenizer = request.getfixturevalue(fixture)
    ids = stream_row({"text": "It is 17.\n\nYes."}, tokenizer).ids.tolist()
    own = tokenizer("It is 17.\n\nYes.")["input_ids"]
    assert ids == own + [tokenizer.eos_token_id] and tokenizer.eos_token_id not in own


@pytest.mark.parametrize(("tokens", "lengths"), [(25, [10, 10, 5]), (21, [10, 10]), (2, [2])])
def test_blocks_lose_nothing_but_a_single_token(bpe_tokenizer, tokens, lengths):
    rows = [{"input_ids": list(range(tokens))}, {"input_ids": [1]}]
    store, report = encode(bpe_tokenizer, rows, objective="regular", max_length=10)
    assert [len(example.trunk) for example in store] == lengths and report.rows_skipped == {"nothing_to_learn": 1}
    assert np.concatenate([example.trunk for example in store]).tolist() == list(range(sum(lengths)))


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


def test_label_modes(llama3_tokenizer):
    row = {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "What is 12 + 5?"},
                        {"role": "assistant", "content": "It is 17."}]}  # fmt: skip
    tokenizer, counts = llama3_tokenizer, {}
    for labels in ("assistant", "all", "reference"):
        store, report = encode(tokenizer, [row], ChatRenderer(tokenizer), objective="regular", labels=labels)
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


# Rows of token ids that say which of their tokens are labelled; the right values come from transformers alone

IDS = [11, 12, 13, 14, 15, 16]
FORMS = {
    "labels": {"labels": [-100, -100, 13, 14, -100, 16]},
    "masks": {"completion_mask": [0, 0, 1, 1, 1, 1], "assistant_masks": [0, 1, 1, 1, 0, 1]},
    "loss mask": {"loss_mask": [False, False, True, True, False, True]},
    "copied labels": {"labels": IDS, "loss_mask": [0, 0, 1, 1, 0, 1]},
    "labels and another mask": {"labels": [-100, -100, 13, 14, 15, 16], "completion_mask": [1, 0, 1, 1, 0, 1]},
    "array": {"labels": np.array([-100, -100, 13, 14, -100, 16])},
}
PADDED = {
    "right": ([*IDS, 0, 0], [1, 1, 1, 1, 1, 1, 0, 0], [-100, -100, 13, 14, -100, 16, -100, -100]),
    "left": ([0, 0, *IDS], [0, 0, 1, 1, 1, 1, 1, 1], [-100, -100, -100, -100, 13, 14, -100, 16]),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_labels_the_same(bpe_tokenizer, name):
    row = stream_row({"input_ids": IDS, **FORMS[name]}, bpe_tokenizer)
    assert row.ids.tolist() == IDS and row.labels == ((2, 4), (5, 6)) and row.unread == []


@pytest.mark.parametrize("side", PADDED)
def test_padding_is_taken_out(bpe_tokenizer, side):
    ids, attention, labels = PADDED[side]
    row = stream_row({"input_ids": ids, "attention_mask": attention, "labels": labels}, bpe_tokenizer)
    assert row.ids.tolist() == IDS and row.labels == ((2, 4), (5, 6))
    # Labels that copy the ids, padding included, as scripts for causal models write them.
    row = stream_row({"input_ids": ids, "attention_mask": attention, "labels": ids}, bpe_tokenizer)
    assert row.labels == ((1, 6),)
    row = stream_row({"input_ids": ids, "attention_mask": attention}, bpe_tokenizer)
    assert row.ids.tolist() == IDS and row.labels is None


@pytest.mark.parametrize(
    ("row", "reason", "words"),
    [
        ({"input_ids": [-1, 5]}, "unknown_token", "outside of 0 to "),
        ({"input_ids": [5, 10**6]}, "unknown_token", "outside of 0 to "),
        *(({"input_ids": ids}, "content_not_text", "not a list of whole") for ids in ("abc", [], [1.5], [[1], [1, 2]])),
        ({"text": 7}, "content_not_text", "'text' has type int"),
        ({"text": "\ud800"}, "broken_text", "lone surrogate"),
        ({"input_ids": IDS, "labels": [*IDS[1:], -100]}, "contradicting_columns", "a label must be the same token"),
        ({"input_ids": IDS, "labels": IDS[:5]}, "contradicting_columns", "5 entries, but 'input_ids' has 6"),
        ({"input_ids": IDS, "loss_mask": "111111"}, "content_not_text", "'loss_mask' is not a list of whole numbers"),
        ({"input_ids": IDS, "attention_mask": [0] * 6}, "contradicting_columns", "masks all tokens"),
        ({"input_ids": IDS, "attention_mask": [1, 0, 1, 1, 1, 1]}, "contradicting_columns", "some between others"),
    ],
)
def test_rows_that_are_refused(bpe_tokenizer, row, reason, words):
    with pytest.raises(RowError) as caught:
        stream_row(row, bpe_tokenizer)
    assert caught.value.reason == reason and words in str(caught.value)


def test_such_a_row_is_cut_as_a_chat_is(bpe_tokenizer):
    rows = [{"input_ids": IDS, "labels": [-100, 12, 13, 14, 15, 16]}, {"input_ids": IDS, "labels": [-100] * 5 + [16]}]
    options = {"objective": "regular", "labels": "assistant", "max_length": 4}
    store, report = encode(bpe_tokenizer, rows, **options)
    (example,) = store
    assert example.trunk.tolist() == IDS[:4] and example.labels == ((1, 4),)
    assert report.answers_truncated == 1 and report.rows_skipped == {"nothing_to_learn": 1}
    assert report.labelled_tokens == 3
    with pytest.raises(DataError, match="longer than max_length, left out by drop_longer"):
        encode(bpe_tokenizer, rows, drop_longer=True, **options)
