"""The converted tokenizers give what their originals give."""

from functools import cache

import pytest

from support import tokenizers as made

HARD = (
    "12 + 5 = 17.\n\nSo 17.",
    "\n\n",
    "one\r\ntwo\r\n\r\nthree\n \n\tfour",
    "1234567 1,234.50 \u0663\u0664 \uff11\uff12",
    "several   spaces    and\u00a0a\u2003wide\u200bnone ",
    "smile \U0001f600, \U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f\U0001f44d\U0001f3fd!",
    "e\u0301a\u0308o\u0302\u0323 n\u0303\u0303",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u3000\uff21\uff22\uff23",
    "\u0645\u0631\u062d\u0628\u0627 \u0e2a\u0e27\u0e31\u0e2a \u0928\u092e\u0938\u094d\u0924\u0947",
    "def f(x):\n    return {'a': x[0]}  # $\\frac{1}{2}$\n\n\n",
    "We'll CAN'T they'Re it\u2019s",
    "\x00\x7f\u2028\ufeffend",
)


@cache
def original(name):
    """The tokenizer of the package that a converted one comes from."""
    if name == "llama3":
        return pytest.importorskip("llama_models.llama3.tokenizer").Tokenizer.get_instance()
    mistral = pytest.importorskip("mistral_common.tokens.tokenizers.mistral")
    validator = pytest.importorskip("mistral_common.protocol.instruct.validator")
    file = made.source_file("mistral_common", {"tekken": "data/tekken_*.json"}.get(name, f"data/*.model.{name}"))
    return mistral.MistralTokenizer.from_file(str(file), mode=validator.ValidationMode.finetuning)


def converted(name):
    if name in ("v1", "v3"):
        return made.mistral_sentencepiece_tokenizer(name)
    return made.llama3_tokenizer() if name == "llama3" else made.tekken_tokenizer()


@pytest.mark.parametrize("name", ["llama3", "tekken", "v1", "v3"])
def test_ids_equal_the_original(name):
    tokenizer, source = converted(name), original(name)
    source = source if name == "llama3" else source.instruct_tokenizer.tokenizer
    for text in HARD if name == "v3" else (*HARD, " a", "  a", " ", "   \n x"):
        ids = made.ids_of(tokenizer, text)
        assert ids == source.encode(text, bos=False, eos=False) and tokenizer.decode(ids) == text, ascii(text)
