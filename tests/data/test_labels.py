"""Labels are exactly the answers as the template shows them, each with its end-of-turn token."""

import pytest
from tokenizers import AddedToken

from stepjepa.data.encode import encode_dataset
from stepjepa.data.template import ChatRenderer
from stepjepa.errors import DataError
from support import tokenizers as made
from support.encoding import labelled, settings_of
from support.templates import FORMATS

QUESTION = "What is 12 + 5?"
# Answers that every template shows as they are, the `>` in front keeps a template's space from merging.
ANSWERS = {
    "merged separator": ">12 + 5 = 17.\n\nSo it is 17.",
    "ends in a full stop": ">It is 17.",
    "repeats the question": "What is 12 + 5? It is What is 12 + 5?",
    "empty": "",
    "one letter": "x",
    "emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467 17 \u2764\ufe0f\U0001f44d\U0001f3fd",
    "combining marks": "o\u0302\u0323 e\u0301 n\u0303\u0303",
    "windows lines": ">a = 17\r\n\r\nb = 17.\r\nc",
    "look-alikes": ">a<|eot_id|>b<|predictor_1|>c</s>d<|im_end|>e[INST]<s>f<end_of_turn>g",
    "ends in a look-alike": ">17<|eot_id|>",
    "starts with one": "</s>17<|im_end|>",
    "numbers": "1234567 1,234.50",
    "chinese": "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
}
BLOCK = "<think>\n\n</think>\n\n"


REAL = {
    "llama3": made.llama3_tokenizer,
    "mistral_v1": lambda: made.mistral_sentencepiece_tokenizer("v1"),
    "mistral": made.mistral_sentencepiece_tokenizer,
    "mistral_tekken": made.tekken_tokenizer,
}


def encode(tokenizer, chats, **options):
    settings = settings_of("regular", **options)
    rows = [{"messages": messages} for messages in chats]
    return encode_dataset(rows, tokenizer, ChatRenderer(tokenizer), settings)


def chat(answer, question=QUESTION):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


@pytest.mark.parametrize(
    ("kind", "template"), [*(("bpe", name) for name in FORMATS), *(("real", name) for name in REAL)]
)
def test_labels_decode_to_the_answer_and_its_end(kind, template):
    tokenizer = made.byte_bpe_tokenizer(template) if kind == "bpe" else REAL[template]()
    # Where the template writes no end of turn, the tokenizer's EOS is one; there may be none.
    end = FORMATS[template].end_of_turn or tokenizer.eos_token or ""
    answers = [a for a in ANSWERS.values() if a or end]
    store, report = encode(tokenizer, [chat(answer) for answer in answers])
    assert report.rows_kept == len(answers)
    count = 0
    for answer, example in zip(answers, store, strict=True):
        if end and template != "dated":
            own = tokenizer.apply_chat_template(chat(answer), date_string="26 Jul 2024", return_dict=False)
            assert example.trunk.tolist() == own  # and so begins with one BOS at most
        ((start, stop),) = example.labels
        (text,) = labelled(tokenizer, example)
        # A byte-level token may hold the space that these templates write in front of an answer.
        if template in ("plain_no_eot", "mistral", "mistral_v1"):
            text = text.removeprefix(" ")
        if template == "qwen3":  # writes an empty thinking block that the generation prompt does not have
            text = text.removeprefix(BLOCK)
        if (kind, template) == ("real", "mistral_v1"):  # this tokenizer writes a space behind every special token
            answer = answer.replace("<s>", "<s> ").replace("</s>", "</s> ")
        assert text == answer + end, ascii(answer)
        tail = tokenizer.decode(example.trunk[stop:].tolist())
        closes_with_a_line = end in ("", "<end_of_turn>", "<|im_end|>") or template == "zephyr"
        assert tail == ("\n" if closes_with_a_line else "")
        if end:
            last = example.trunk[stop - 1]
            assert tokenizer.convert_ids_to_tokens(int(last)) == end
        count += stop - start
    assert report.labelled_tokens == count
    assert report.tokens == sum(len(example.trunk) for example in store)


def test_the_number_of_labels_by_hand(llama3_tokenizer, tekken_tokenizer):
    # ">", "12", ".\n\n", "So", end of turn; Tekken writes each digit as a token.
    for tokenizer, count in ((llama3_tokenizer, 5), (tekken_tokenizer, 6)):
        store, report = encode(tokenizer, [chat(">12.\n\nSo"), chat("")])
        assert [stop - start for ((start, stop),) in (e.labels for e in store)] == [count, 1]
        assert report.labelled_tokens == count + 1
    store, report = encode(llama3_tokenizer, [chat("So")])
    (example,) = store
    assert example.trunk[slice(*example.labels[0])].tolist() == [4516, 128009]
    assert report.end_token == "<|eot_id|>"


def with_eos(template_text, *special):
    tokenizer = made.fresh(made.byte_bpe_tokenizer())
    tokenizer.chat_template = template_text
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in special], special_tokens=True)
    return tokenizer


def test_without_an_end_of_turn_the_eos_is_appended_and_nothing_merges():
    tokenizer = with_eos(FORMATS["plain_no_eot"].template)
    store, report = encode(tokenizer, [chat("It is 17."), [*chat("A 17."), *chat("B 17.", "R")], chat("")])
    assert tokenizer.decode(store[0].trunk.tolist()) == ("User: What is 12 + 5?\nAssistant: It is 17.<|im_end|>")
    assert labelled(tokenizer, store[0]) == [" It is 17.<|im_end|>"]
    assert labelled(tokenizer, store[1]) == [" A 17.", " B 17.<|im_end|>"]
    assert labelled(tokenizer, store[2]) == [" <|im_end|>"]
    (warning,) = (one for one in report.prompts.warnings() if one.name == "empty_answer")
    assert (warning.count, warning.total) == (1, 3) and "empty in 1 row (first: list row 2)" in warning.text
    assert report.lines()[1].endswith("; end of turn: <|im_end|>")
    # The trap itself: this tokenizer writes the full stop and the line break as one token.
    real = made.llama3_tokenizer("plain_no_eot")
    assert len(real(".\n", add_special_tokens=False)["input_ids"]) == 1
    store, _ = encode(real, [[*chat("A 17."), *chat("B 17.", "R")]])
    assert labelled(real, store[0]) == [" A 17.", f" B 17.{real.eos_token}"]
    bare = made.byte_bpe_tokenizer(template="plain_no_eot")  # has no EOS
    store, report = encode(bare, [chat("It is 17.")])
    assert labelled(bare, store[0]) == [" It is 17."] and report.lines()[1].endswith("; end of turn: none")
    with pytest.raises(DataError, match="the answer is empty, and no token ends its turn"):
        encode(bare, [chat("")])


def test_a_marker_that_opens_the_next_turn_ends_none():
    template = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    tokenizer = with_eos(template, "<|user|>", "<|assistant|>")
    store, _ = encode(tokenizer, [[*chat("A."), *chat("B.", "R")]])
    # Without a generation prompt the model has to write the marker itself.
    assert labelled(tokenizer, store[0]) == ["<|assistant|>A.", "<|assistant|>B.<|im_end|>"]
    between = "{% for m in messages %}{{ m['content'] }}{{ '' if loop.last else eos_token }}{% endfor %}"
    store, _ = encode(with_eos(between), [[*chat("A."), *chat("B.", "R")]])
    assert labelled(tokenizer, store[0]) == ["A.<|im_end|>", "B.<|im_end|>"]
