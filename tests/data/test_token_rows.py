"""Rows of token ids that say which of their tokens are labelled; the right values come from transformers alone."""

from __future__ import annotations

import numpy as np
import pytest

import stepjepa
from stepjepa.data.encode import encode_dataset
from stepjepa.data.token_rows import stream_row
from stepjepa.errors import RowError
from support.encoding import settings_of

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
    ("more", "words"),
    [
        ({"labels": [12, 13, 14, 15, 16, -100]}, "'labels' has other tokens; a label must be the same token"),
        ({"labels": IDS[:5]}, "'labels' has 5 entries, but 'input_ids' has 6"),
        ({"loss_mask": "111111"}, "'loss_mask' is not a list of whole numbers"),
        ({"attention_mask": [0, 0, 0, 0, 0, 0]}, "masks all tokens"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(bpe_tokenizer, more, words):
    with pytest.raises(RowError) as caught:
        stream_row({"input_ids": IDS, **more}, bpe_tokenizer)
    assert words in str(caught.value)


def encode(tokenizer, rows, **options):
    return encode_dataset(rows, tokenizer, None, settings_of("regular", **options))


def test_such_a_row_is_cut_as_a_chat_is(bpe_tokenizer):
    rows = [{"input_ids": IDS, "labels": [-100, 12, 13, 14, 15, 16]}, {"input_ids": IDS, "labels": [-100] * 5 + [16]}]
    store, report = encode(bpe_tokenizer, rows, max_length=4)
    (example,) = store
    assert example.trunk.tolist() == IDS[:4] and example.labels == ((1, 4),)
    assert report.answers_truncated == 1 and report.rows_skipped == {"nothing_to_learn": 1}
    assert report.labelled_tokens == 3
    with pytest.raises(stepjepa.errors.DataError, match="longer than max_length, left out by drop_longer"):
        encode(bpe_tokenizer, rows, max_length=4, drop_longer=True)
