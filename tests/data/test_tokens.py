"""Character spans become token spans by one rule: a token belongs to the span that holds its last character."""

import numpy as np
from tokenizers import AddedToken, processors

from stepjepa.data.tokens import encode_cut, encode_texts, last_characters, token_span, turn_marks
from support.tokenizers import byte_bpe_tokenizer, fresh, mistral_sentencepiece_tokenizer


def tokens(tokenizer, text):
    """[(token, index of its last character), ...]"""
    ids, last = encode_texts(tokenizer, [text])[0]
    assert ids.dtype == np.int32 and isinstance(last, list)
    return list(zip(tokenizer.convert_ids_to_tokens(ids.tolist()), last, strict=True))


def test_spans_by_the_last_character():
    last, spans = [2, 2, 2, 5, 8, 8], [(0, 3), (0, 2), (3, 6), (3, 5), (5, 9), (9, 20), (8, 3)]
    found = [(0, 3), (0, 0), (3, 4), (3, 3), (3, 6), (6, 6), (4, 4)]
    assert [token_span(last, *span) for span in spans] == found
    assert token_span(np.zeros(0, np.int64), 0, 5) == (0, 0)


def test_last_characters():
    assert last_characters([(0, 1), (0, 1), (1, 4)], 4).tolist() == [0, 0, 3]
    assert last_characters([(0, 0), (0, 2), (2, 2)], 2).tolist() == [0, 1, 1]  # added marks
    assert last_characters([(0, 2), (2, 2), (2, 4)], 4).tolist() == [1, 2, 3]  # and behind special tokens
    assert last_characters([(0, 3), (4, 4), (5, 5), (6, 7)], 7).tolist() == [2, 3, 4, 6]  # trimmed spaces
    assert last_characters([], 0).tolist() == []


def test_a_merged_separator_belongs_to_the_step_that_it_ends(llama3_tokenizer):
    text = "So 17.\n\nThen 3"
    assert tokens(llama3_tokenizer, text) == [
        ("So", 1), ("\u0120", 2), ("17", 4), (".\u010a\u010a", 7), ("Then", 11), ("\u0120", 12), ("3", 13)
    ]  # fmt: skip
    last = encode_texts(llama3_tokenizer, [text])[0][1]
    assert token_span(last, 0, 8) == (0, 4)
    assert token_span(last, 8, 14) == (4, 7)
    assert token_span(last, 0, 6) == (0, 3)  # without its separator the step loses the merged full stop


def test_a_sentencepiece_mark_counts_with_the_first_character():
    for version in ("v1", "v3"):
        tokenizer = mistral_sentencepiece_tokenizer(version)
        assert tokens(tokenizer, "\n\na") == [("\u2581", 0), ("<0x0A>", 0), ("<0x0A>", 1), ("a", 2)]
    assert tokens(mistral_sentencepiece_tokenizer("v1"), "a</s>b") == [("\u2581a", 0), ("</s>", 4), ("\u2581b", 5)]


def test_offsets_that_are_trimmed_of_spaces():
    tokenizer = fresh(byte_bpe_tokenizer())
    want = tokens(tokenizer, " foo   bar.  \n\n  So it  ")
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    assert tokens(tokenizer, " foo   bar.  \n\n  So it  ") == want


def test_a_special_token_does_not_own_the_white_space_that_it_swallows():
    tokenizer = fresh(byte_bpe_tokenizer())
    tokenizer.add_tokens([AddedToken("<|a|>", special=True, rstrip=True, normalized=False)], special_tokens=True)
    assert tokens(tokenizer, "<|a|>\n  x<|a|>  ") == [("<|a|>", 4), ("x", 8), ("<|a|>", 13)]


def test_encode_cut(bpe_tokenizer):
    text = "It is 17.\n\nSo"
    whole = encode_texts(bpe_tokenizer, [text])[0]
    assert encode_cut(bpe_tokenizer, text, [])[0].tolist() == whole[0].tolist()
    ids, last = encode_cut(bpe_tokenizer, text, [9, 11])
    assert bpe_tokenizer.decode(ids) == text
    names = bpe_tokenizer.convert_ids_to_tokens(ids.tolist())
    assert names[-4:] == [".", "\u010a", "\u010a", "So"] and last[-4:] == [8, 9, 10, 12]
    assert ".\u010a\u010a" in bpe_tokenizer.convert_ids_to_tokens(whole[0].tolist())


def test_turn_ends(llama3_tokenizer):
    assert {5, 128009, 6, 128006} & turn_marks(llama3_tokenizer) == {128009, 128006}
    tokenizer = fresh(byte_bpe_tokenizer())
    tokenizer.add_tokens(["\n\n\n", "\u2581\u2581", "<end>"])
    blank, marks, end = (tokenizer.convert_tokens_to_ids(t) for t in ("\n\n\n", "\u2581\u2581", "<end>"))
    assert {blank, marks, 300, end} & turn_marks(tokenizer) == {end}  # white space ends nothing
