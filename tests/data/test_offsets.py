"""Slow tokenizers: their tokens are traced to the text, as a fast one's offsets would say, or the text is refused."""

import numpy as np
import pytest

from stepjepa.data.chat import ChatRenderer, RowError
from stepjepa.data.encode import encode_dataset
from stepjepa.data.offsets import align
from stepjepa.data.options import EncodeOptions
from stepjepa.data.steps import make_splitter
from stepjepa.data.tokens import check_tokenizer, encode_apart, encode_texts
from stepjepa.errors import ConfigError, DataError
from support import tokenizer_kinds as kinds
from support import tokenizers as made

TEXTS = (
    "So 17.\n\nThen 3",
    "<|im_start|>user\nQ?<|im_end|>\n<|im_start|>assistant\n  It is \u201c17\u201d.\n\nSo 17. \n\n<|im_end|>\n",
    "smile \U0001f600\U0001f600, \U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f!\n\n\u4f60\u597d\uff0c\u4e16\u754c",
    "e\u0301a\u0308o\u0302\u0323 and \u00e9",
    "  two  spaces,\ttab\r\n\r\n \n trailing  ",
    " a",
    "\n\n",
    " ",
    "",
    "\ufffd and \u2581",
    "x" * 300 + "\n\n" + "word " * 700,
)


def lasts(tokenizer, texts):
    return [(ids.tolist(), last.tolist()) for text in texts for ids, last in encode_texts(tokenizer, [text])]


@pytest.mark.parametrize(
    ("pieces", "text", "want"),
    [
        ([b"a", b" b"], "a b", [0, 2]),
        ([b" a", b" b"], "a b", [0, 2]),  # a space in front that is the tokenizer's
        ([b" ", b"\n", b"a"], "\na", [0, 0, 1]),  # and has a token of its own, which counts with what follows
        ([b"  ", b" a"], "  a", [0, 2]),  # at the beginning the added space is the first
        ([b"\xc3", b"\xa9x", b"\xf0\x9f", b"\x98\x80"], "\u00e9x\U0001f600", [0, 1, 2, 2]),
        ([b"a\xf0\x9f", b"\x98\x80b"], "a\U0001f600b", [1, 2]),  # a token that ends inside a character counts with it
        ([b"", b"a", b"", b"b", b""], "ab", [0, 0, 1, 1, 1]),
        ([b"foo", b".", b"bar"], "foo .\n\n bar  ", [2, 4, 10]),  # white space that is dropped is nobody's
        ([b"foo", b" ", b"$", b"5"], "foo\n\n $5", [2, 5, 6, 7]),  # folded white space, all of it one token's
        ([b" a", b" \n", b" b"], "a\nb", [0, 1, 2]),  # a decoder's spaces between tokens
        ([b"Foo", b" bar"], "foo bar", None),
        ([b"foo", b" bar"], "FOO Bar", [2, 6]),
        ([b"cafe"], "Caf\u00e9", [3]),
        ([b"cafe", b"s"], "Cafe\u0301s", [4, 5]),  # the accent is a character of its own, and goes with its letter
        ([b"fi", b"1"], "\ufb01\uff11", [0, 1]),
        ([b"\xc3\xa9", b"t"], "e\u0301t", [1, 2]),
        ([b"a", b" ", b" ", b"b"], "a b", None),  # which of the two is the text's?
        ([b"a", b" ", b" b"], "a   b", None),
        ([b"a"], "ab", None),
        ([b"ab"], "a", None),
        ([b"a", b"c", b"b"], "abc", None),
        ([], "", []),
        ([], " ", []),
        ([], "a", None),
        ([b" "], "", [0]),
    ],
)
def test_alignment(pieces, text, want):
    found = align(pieces, text)
    assert (found if found is None else found.tolist()) == want


def test_spaces_behind_special_tokens():
    pieces = [b"</s>", b" ", b" a", b" b"]
    assert align(pieces, "</s> a b", [0]) is None
    assert align(pieces, "</s> a b", [0, 1]).tolist() == [3, 4, 5, 7]


@pytest.mark.parametrize("kind", [kinds.SlowTwin, kinds.Nameless, kinds.Bytes])
def test_a_slow_byte_level_tokenizer_says_what_the_fast_one_says(kind):
    fast = made.fresh(made.byte_bpe_tokenizer())
    slow = kind(fast)
    assert not slow.is_fast
    check_tokenizer(slow)
    texts = [text for text in TEXTS if kind is not kinds.Nameless or "\ufffd" not in text]
    assert lasts(slow, texts) == lasts(fast, texts)
    ids, last = encode_texts(slow, texts[:1])[0]
    assert ids.dtype == np.int32 and last.dtype == np.int64
    for found, want in zip(encode_apart(slow, TEXTS[0], [6, 8]), encode_apart(fast, TEXTS[0], [6, 8]), strict=True):
        assert found.tolist() == want.tolist()


def test_a_replacement_character_cannot_be_told_from_a_part_of_one_by_decoding():
    slow = kinds.Nameless(made.fresh(made.byte_bpe_tokenizer()))
    with pytest.raises(RowError, match="do not add up to the text") as caught:
        encode_texts(slow, ["\ufffd x"])
    assert caught.value.reason == "no_offsets"


@pytest.mark.parametrize("name", ["llama3", "tekken"])
def test_tokens_that_hold_parts_of_several_characters(name):
    fast = made.llama3_tokenizer() if name == "llama3" else made.tekken_tokenizer()
    text = "\U0001f468\U0001f3fd\u200d\U0001f469 \u0939\u093f\u0928\u094d\u0926\u0940 \U00012000\U00012001 \u9f98\u9f98"
    assert lasts(kinds.Nameless(fast), [text]) == lasts(fast, [text])


@pytest.mark.parametrize("kind", ["gpt2", "unigram", "wordpiece"])
def test_slow_twins_of_tokenizers_that_change_the_text(kind):
    # Where a normaliser joins letters with their marks, offsets leave the mark out; see `test_alignment`.
    texts = [text for text in TEXTS if "\ufffd" not in text and (kind == "gpt2" or "\u0301" not in text)]
    fast = kinds.trained(kind, texts)
    compared = 0
    for slow in (kinds.SlowTwin(fast), kinds.Nameless(fast)):
        for text in texts:
            want = lasts(fast, [text])
            try:
                found = lasts(slow, [text])
            except RowError:
                assert text not in TEXTS[:2]
                continue
            assert [ids for ids, _ in found] == [ids for ids, _ in want]
            assert found == want, ascii(text)
            compared += 1
    assert compared >= len(texts)


class Counting(kinds.Nameless):
    """Counts the tokens that it is asked to decode."""

    decoded = 0

    def convert_tokens_to_string(self, tokens):
        self.decoded += len(tokens)
        return super().convert_tokens_to_string(tokens)


def test_time_is_linear_in_the_texts_length():
    slow = Counting(made.fresh(made.byte_bpe_tokenizer()))
    text = "It is \U0001f600 17.\n\n" * 300
    ((ids, _),) = encode_texts(slow, [text])
    assert len(ids) > 2000 and slow.decoded < 30 * len(ids)
    slow.decoded = 0
    encode_texts(slow, ["It is 17.\n\n" * 300])
    assert slow.decoded < 20  # every token is known by now


def test_sentencepiece_says_what_the_converted_tokenizer_says(tmp_path):
    slow, fast = kinds.sentencepiece_tokenizer("v1", tmp_path, legacy=True), made.mistral_sentencepiece_tokenizer("v1")
    # SentencePiece itself cannot tell its mark from a space.
    texts = [f"<s>[INST] {text} [/INST] {text}</s>" for text in TEXTS if "\u2581" not in text]
    assert lasts(slow, texts) == lasts(fast, texts)


def test_sentencepiece_without_a_space_in_front(tmp_path):
    slow = kinds.sentencepiece_tokenizer("v3", tmp_path, legacy=False)
    ((ids, last),) = encode_texts(slow, ["<s>[INST] So 17.\n\n\U0001f468 </s>"])
    assert list(zip(slow.convert_ids_to_tokens(ids.tolist()), last.tolist(), strict=True)) == [
        ("<s>", 2), ("[", 3), ("INST", 7), ("]", 8), ("\u2581So", 11), ("\u2581", 12), ("1", 13), ("7", 14), (".", 15),
        ("<0x0A>", 16), ("<0x0A>", 17), ("<0xF0>", 18), ("<0x9F>", 18), ("<0x91>", 18), ("<0xA8>", 18), ("\u2581", 19),
        ("</s>", 23),
    ]  # fmt: skip


def test_bytes_and_letters_as_tokens():
    text = "<|im_start|>a\u00e9 \U0001f600\n<|im_end|>"
    byt5, letters = kinds.byt5_tokenizer(), kinds.Letters()
    assert lasts(byt5, [text])[0][1] == [11, 12, 13, 13, 14, 15, 15, 15, 15, 16, 26]
    assert lasts(letters, [text])[0][1] == [11, 12, 13, 14, 15, 16, 26]
    assert letters.decode(encode_texts(letters, ["ab c"])[0][0]) == "a b   c"  # so nothing is found by decoding


def rows(*answers):
    return [
        {"messages": [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": text}]} for text in answers
    ]


def encode(tokenizer, data, **options):
    settings = EncodeOptions("step_jepa", make_splitter("separator"), step_pairs="all", **options)
    return encode_dataset(data, tokenizer, ChatRenderer(tokenizer), settings)


ANSWERS = ("It is 17.\n\nSo\u00a017 \U0001f600.\n\nEnd.", "a.\n\nb.", "One.")


@pytest.mark.parametrize("kind", [kinds.SlowTwin, kinds.Nameless, kinds.Bytes])
def test_examples_of_a_slow_tokenizer_are_those_of_the_fast_one(kind):
    fast = made.fresh(made.byte_bpe_tokenizer())
    found, report = encode(kind(fast), rows(*ANSWERS))
    want, expected = encode(fast, rows(*ANSWERS))
    assert report.to_dict() == expected.to_dict() and report.pairs == 3
    for left, right in zip(found, want, strict=True):
        assert left.input_ids.tolist() == right.input_ids.tolist()
        assert (left.label_spans, left.pairs) == (right.label_spans, right.pairs)


@pytest.mark.parametrize("name", ["byt5", "letters"])
def test_examples_of_tokenizers_of_bytes_and_letters(name):
    tokenizer = kinds.byt5_tokenizer() if name == "byt5" else kinds.Letters()
    store, report = encode(tokenizer, rows(*ANSWERS))
    said = ["".join(tokenizer.convert_ids_to_tokens(example.input_ids.tolist())) for example in store]
    if name == "byt5":
        said = [text.encode("latin-1").decode() for text in said]
    assert said[0] == f"<|im_start|>user\nQ?<|im_end|>\n<|im_start|>assistant\n{ANSWERS[0]}<|im_end|>\n"
    assert report.pairs == 3 and report.end_of_turn == "<|im_end|>"
    first, second = store[0].pairs
    targets = [store[0].input_ids[pair.target_start : pair.target_end].tolist() for pair in (first, second)]
    texts = ["".join(tokenizer.convert_ids_to_tokens(ids)) for ids in targets]
    texts = [text.encode("latin-1").decode() for text in texts] if name == "byt5" else texts
    assert texts == ["So\u00a017 \U0001f600.\n\n", "End."]
    assert first.source_end + 1 == first.target_start and first.target_end == second.target_start


def test_a_row_that_cannot_be_traced_is_refused_and_the_others_are_kept():
    store, report = encode(kinds.Liar(), rows("a.\n\nb.", "so.\n\nb.", "c.\n\nd."))
    assert report.rows_skipped == {"no_offsets": 1} and report.rows_kept == len(store) == 2
    assert "row 1: the tokenizer gives no character offsets" in report.first_skipped["no_offsets"]
    assert "the tokenizer's tokens cannot be traced to the text" in "\n".join(report.lines())
    with pytest.raises(DataError, match="row 1.*do not add up to the text"):
        encode(kinds.Liar(), rows("a.", "so."), strict=True)
    with pytest.raises(RowError):
        encode_texts(kinds.Liar(), ["a", "so"])


def test_unknown_characters_are_named():
    tokenizer = kinds.SlowTwin(kinds.trained("wordpiece", ["a b c <|im_start|>"]))
    assert lasts(tokenizer, ["a b"])[0][1] == [0, 2]
    with pytest.raises(RowError, match="characters that it does not know"):
        encode_texts(tokenizer, ["a \u4f60"])


def test_half_a_tokenizer_is_refused():
    class Half(kinds.Letters):
        def _convert_id_to_token(self, index):
            raise NotImplementedError("no names")

    check_tokenizer(kinds.Letters())
    for tokenizer in (Half(), object()):
        with pytest.raises(ConfigError, match="slow one and gives no character offsets"):
            check_tokenizer(tokenizer)
