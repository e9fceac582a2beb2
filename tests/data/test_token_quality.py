"""The tokens of every step say the step, for every kind of tokenizer.

What tokens say is found by decoding them, never by the offsets that the spans are made of: the tokens in front of a step's
first token must say what stands in front of the step, less at most a last token that reaches into the step's characters.
"""

import json

import numpy as np
import pytest
from tokenizers import pre_tokenizers, processors

from stepjepa.data.steps import make_splitter
from stepjepa.data.tasks import generate_rows
from stepjepa.data.template import ChatRenderer
from stepjepa.data.tokens import encode_texts, token_span
from support import tokenizers as made

COUNT = 120
NASTY = (
    "12 + 5 = 17.\n\nSo 17.\n\n\n\nDone!",
    "\n\nIt begins with a blank line.\n\n \n\nAnd ends with one.\n\n",
    "  Two spaces in front,  two inside,\ttabs\t\tand a trailing one \n \n  indented \n\n",
    "Smile \U0001f600\n\n\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f\U0001f44d\U0001f3fd!\n\nok",
    "e\u0301a\u0308\n\no\u0302\u0323 n\u0303\u0303\u00e9\n\n\ufb01n \uff11\uff12",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\n\n\u3000\uff21\uff22\uff23\u3002\n\n\u7b54\uff1a42",
    "\u0645\u0631\u062d\u0628\u0627\n\n\u0e2a\u0e27\u0e31\u0e2a\n\n\u0928\u092e\u0938\u094d\u0924\u0947",
    "A no-break\u00a0space,\u2003an em space\u2028a line separator.\n\nEnd\u200b.",
    "<think>\nA sum.\n\nOf two.\n</think>\n\nIt is 17.\n\nSo \\boxed{17}.",
    "Code:\n\n```python\ndef f(x):\n    return {'a': x[0]}\n\n\nprint(f([1]))\n```\n\nIt prints.",
    "\\[ \\frac{1}{2} \\]\r\n\r\n$x^2$\r\n\r\nWe'll CAN'T they'Re it\u2019s",
    "So<|im_end|>\n\n<s> [INST] and </s>\n\n<unk> are text here.",
    "One step only",
    "a.\n\nb.\n\nc!\n\n(d)\n\n[e]\n\n...\n\n\u2026",
)
WRITES_BOS = ("llama3", "v1", "v3", "tekken")
PLAIN = tuple(text for text in NASTY if "<s>" not in text)


def spaced_and_trimmed():
    """As GPT-2's: a space in front, and offsets without spaces."""
    tokenizer = made.fresh(made.byte_bpe_tokenizer())
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer


MAKERS = {
    "llama3": made.llama3_tokenizer,
    "v1": lambda: made.mistral_sentencepiece_tokenizer("v1"),
    "v3": made.mistral_sentencepiece_tokenizer,
    "tekken": made.tekken_tokenizer,
    "bpe": made.byte_bpe_tokenizer,
    "gpt2": spaced_and_trimmed,
}


def identity(text):
    return text


def without_spaces(text):
    """What the marks of spaces do not touch."""
    return text.replace(" ", "")


@pytest.fixture(scope="module")
def answers(request):
    """GSM8K answers, or built-in ones where the file is absent; every other one with blank lines."""
    try:
        lines = (request.getfixturevalue("shared_dir") / "data" / "gsm8k_train.jsonl").read_text("utf-8").splitlines()
        texts = [json.loads(line)["answer"] for line in lines[:COUNT]]
    except (pytest.skip.Exception, OSError):
        texts = [row["messages"][-1]["content"] for row in generate_rows(COUNT)]
    return [text.replace("\n", ".\n\n") if number % 2 else text for number, text in enumerate(texts)]


def step_spans(renderer, splitter, answers):
    """[(text, character spans of the answer's steps), ...] of rendered chats."""
    found = []
    for answer in answers:
        chat = renderer.render([{"role": "user", "content": "Q?"}, {"role": "assistant", "content": answer}])
        span = chat.spans[-1]
        pieces = splitter.spans(chat.text[span.start : span.end])
        found.append((chat.text, [(span.start + a, span.start + b) for a, b in pieces]))
    return found


def check_spans(same, chats, encoded, decode):
    """Every span's tokens say the span's text up to the boundary rule.

    Args:
        same: what two texts are compared by.
        decode: lists of token ids -> what they say.
    """
    cuts, parts = [], []
    for (_, spans), (ids, last) in zip(chats, encoded, strict=True):
        found = [token_span(last, start, end) for start, end in spans]
        for (_, stop), (first, _), (_, end), (start, _) in zip(found, found[1:], spans, spans[1:], strict=False):
            assert stop == first and end == start  # steps follow one another, and no token is lost or in two of them
        places = [first for first, _ in found] + [found[-1][1]]
        assert places == sorted(places) and len(ids) == len(last) and (np.diff(last) >= 0).all()
        cuts.append([*zip(places, [start for start, _ in spans] + [spans[-1][1]], strict=True)])
        edges = [0, *places, len(ids)]
        parts += (ids[a:b].tolist() for a, b in zip(edges, edges[1:], strict=False))
        parts += (ids[cut : cut + 1].tolist() for cut in places)
    said = iter(decode(parts))
    for (text, _), row in zip(chats, cuts, strict=True):
        pieces, following = [next(said) for _ in range(len(row) + 1)], [next(said) for _ in row]
        assert same("".join(pieces)) == same(text), ascii(text)
        for number, (_, character) in enumerate(row):
            wanted, reached = len(same(text[:character])), len(same("".join(pieces[: number + 1])))
            # The tokens in front end at the boundary or before it, and the next token ends behind it, if only with
            # something that does not count.
            assert reached <= wanted, ascii(text)
            reach = reached + len(same(following[number]))
            assert reach > wanted or (reach == wanted and not same(following[number][-1:])), ascii(text)


def decoder(tokenizer):
    """Decodes lists of ids inside a text: behind a token whose own text is taken away again."""
    head = tokenizer.convert_tokens_to_ids("x")
    lead = tokenizer.decode([head])
    assert lead.strip() == "x"

    def decode(lists):
        texts = tokenizer.backend_tokenizer.decode_batch([[head, *ids] for ids in lists], skip_special_tokens=False)
        assert all(text.startswith(lead) for text in texts)
        return [text[len(lead) :] for text in texts]

    return decode


@pytest.mark.parametrize("name", MAKERS)
def test_every_step_decodes_to_its_text(name, answers):
    tokenizer, marked = MAKERS[name](), name in ("v1", "v3", "gpt2")
    same, nasty = (without_spaces, PLAIN) if marked else (identity, NASTY)
    renderer = ChatRenderer(tokenizer)
    for splitter, given in (("lines", answers[::2]), ("separator", [*answers[1::2], *nasty]), ("lines", nasty)):
        chats = step_spans(renderer, make_splitter(splitter), given)
        encoded = encode_texts(tokenizer, [text for text, _ in chats])
        check_spans(same, chats, encoded, decoder(tokenizer))
        if name in WRITES_BOS:
            own = [ids for (text, _), (ids, _) in zip(chats, encoded, strict=True) if "<s> [INST]" not in text]
            assert all(ids[0] == tokenizer.bos_token_id and (ids[1:] != ids[0]).all() for ids in own)
