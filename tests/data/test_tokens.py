"""Character spans become token spans by one rule: a token belongs to the span that holds its last character."""

import numpy as np
import pytest
from tokenizers import AddedToken, pre_tokenizers, processors

from stepjepa.data.steps import make_splitter
from stepjepa.data.tokens import encode_texts, token_span, turn_marks
from support import tokenizers as made
from support.tokenizers import byte_bpe_tokenizer, fresh


def test_spans_by_the_last_character():
    last, spans = [2, 2, 2, 5, 8, 8], [(0, 3), (0, 2), (3, 6), (3, 5), (5, 9), (9, 20), (8, 3)]
    found = [(0, 3), (0, 0), (3, 4), (3, 3), (3, 6), (6, 6), (4, 4)]
    assert [token_span(last, *span) for span in spans] == found
    assert token_span(np.zeros(0, np.int64), 0, 5) == (0, 0)


def test_a_special_token_does_not_own_the_white_space_that_it_swallows():
    tokenizer = fresh(byte_bpe_tokenizer())
    tokenizer.add_tokens([AddedToken("<|a|>", special=True, rstrip=True, normalized=False)], special_tokens=True)
    ids, last = encode_texts(tokenizer, ["<|a|>\n  x<|a|>  "])[0]
    assert ids.dtype == np.int32 and tokenizer.convert_ids_to_tokens(ids.tolist()) == ["<|a|>", "x", "<|a|>"]
    assert last == [4, 8, 13]


def test_turn_ends(llama3_tokenizer):
    assert {5, 128009, 6, 128006} & turn_marks(llama3_tokenizer) == {128009, 128006}
    tokenizer = fresh(byte_bpe_tokenizer())
    tokenizer.add_tokens(["\n\n\n", "\u2581\u2581", "<end>"])
    blank, marks, end = (tokenizer.convert_tokens_to_ids(t) for t in ("\n\n\n", "\u2581\u2581", "<end>"))
    assert {blank, marks, 300, end} & turn_marks(tokenizer) == {end}  # white space ends nothing


# The tokens of every step say the step, for every kind of tokenizer

NASTY = (
    "12 + 5 = 17.\n\nSo 17.\n\n\n\nDone!",
    "\n\nIt begins with a blank line.\n\n \n\nAnd ends with one.\n\n",
    "  Two spaces in front,  two inside,\ttabs\t\tand a trailing one \n \n  indented \n\n",
    "Smile \U0001f600\n\n\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f\U0001f44d\U0001f3fd!\n\nok",
    "e\u0301a\u0308\n\no\u0302\u0323 n\u0303\u0303\u00e9\n\n\ufb01n \uff11\uff12",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\n\n\u3000\uff21\uff22\uff23\u3002\n\n\u7b54\uff1a42",
    "A no-break\u00a0space,\u2003an em space\u2028a line separator.\n\nEnd\u200b.",
    "<think>\nA sum.\n\nOf two.\n</think>\n\nIt is 17.\n\nSo \\boxed{17}.",
    "\\[ \\frac{1}{2} \\]\r\n\r\n$x^2$\r\n\r\nWe'll CAN'T they'Re it\u2019s",
    "a.\n\nb.\n\nc!\n\n(d)\n\n[e]\n\n...\n\n\u2026",
)


def spaced_and_trimmed():
    """As GPT-2's: a space in front, and offsets without spaces."""
    tokenizer = fresh(byte_bpe_tokenizer())
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer


MAKERS = {
    "llama3": made.llama3_tokenizer,
    "v1": lambda: made.mistral_sentencepiece_tokenizer("v1"),
    "v3": made.mistral_sentencepiece_tokenizer,
    "tekken": made.tekken_tokenizer,
    "bpe": byte_bpe_tokenizer,
    "gpt2": spaced_and_trimmed,
}


@pytest.mark.parametrize("splitter", ["separator", "lines"])
@pytest.mark.parametrize("name", MAKERS)
def test_every_step_decodes_to_its_text(name, splitter):
    """What tokens say is found by decoding them, never by the offsets that the spans are made of."""
    tokenizer, marked = MAKERS[name](), name in ("v1", "v3", "gpt2")

    def same(text):
        return text.replace(" ", "") if marked else text

    for text in NASTY:
        ids, last = encode_texts(tokenizer, [text])[0]
        spans = make_splitter(splitter).spans(text)
        found = [token_span(last, *span) for span in spans]
        said = [same(tokenizer.decode(ids[:count])) for count in range(len(ids) + 1)]
        assert (found[0][0], found[-1][1], said[-1]) == (0, len(ids), same(text))
        for (start, _), (first, _), (_, stop) in zip(spans[1:], found[1:], found, strict=False):
            assert stop == first  # no token is lost or in two steps
            # The tokens in front end at the boundary or before it, and the next token ends behind it, if only with
            # something that does not count.
            wanted, reached, beyond = len(same(text[:start])), len(said[first]), len(said[first + 1])
            assert reached <= wanted and (beyond > wanted or beyond == reached == wanted), ascii(text)
