"""The converted tokenizers give what their originals give, and the templates behave as they say."""

import json
from datetime import datetime
from functools import cache

import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer

from support import tokenizers as made
from support.templates import FORMATS

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
LED_BY_A_SPACE = (" a", "  a", " ", "   \n x")
ANSWER = "12 + 5 = 17.\n\nSo 17."
DIALOGUE = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "12+5?"},
    {"role": "assistant", "content": ANSWER},
]


@cache
def original(name):
    """`encode(text) -> ids` of the package that the tokenizer comes from."""
    if name == "llama3":
        source = pytest.importorskip("llama_models.llama3.tokenizer").Tokenizer.get_instance()
    else:
        source = mistral_original(name).instruct_tokenizer.tokenizer
    return lambda text: source.encode(text, bos=False, eos=False)


@cache
def mistral_original(name):
    pytest.importorskip("mistral_common")
    from mistral_common.protocol.instruct.validator import ValidationMode
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    pattern = {"tekken": "data/tekken_*.json"}.get(name, f"data/*.model.{name}")
    file = made.source_file("mistral_common", pattern)
    return MistralTokenizer.from_file(str(file), mode=ValidationMode.finetuning)


def converted(name):
    if name == "llama3":
        return made.llama3_tokenizer()
    return made.tekken_tokenizer() if name == "tekken" else made.mistral_sentencepiece_tokenizer(name)


def encode(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def pieces(tokenizer, text):
    """[(token, start, end), ...]"""
    out = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    names = tokenizer.convert_ids_to_tokens(out["input_ids"])
    return [(name, *span) for name, span in zip(names, out["offset_mapping"], strict=True)]


@pytest.mark.parametrize("name", ["llama3", "tekken", "v1", "v3"])
def test_ids_equal_the_original_and_decode_to_the_text(name):
    tokenizer, reference = converted(name), original(name)
    texts = HARD if name == "v3" else HARD + LED_BY_A_SPACE
    for text in texts:
        ids = encode(tokenizer, text)
        assert ids == reference(text), ascii(text)
        assert tokenizer.decode(ids) == text, ascii(text)
        assert tokenizer.unk_token_id not in ids


@pytest.mark.parametrize("name", ["llama3", "tekken", "v1", "v3", "bpe"])
def test_offsets_are_the_characters_of_each_tokens_bytes(name):
    tokenizer = made.byte_bpe_tokenizer() if name == "bpe" else converted(name)
    for text in HARD:
        owner = [i for i, letter in enumerate(text) for _ in letter.encode()]  # byte -> character
        at = 0
        if name in ("v1", "v3"):
            owner.insert(0, 0)  # the leading mark is laid over the first character
        for token, start, end in pieces(tokenizer, text):
            if name not in ("v1", "v3"):
                length = len(token)  # one letter for each byte
            elif token.startswith("<0x"):
                length = 1
            else:
                length = len(token.replace(made.MARK, " ").encode())
            assert (start, end) == (owner[at], owner[at + length - 1] + 1), (ascii(text), ascii(token))
            at += length
        assert at == len(owner)


def test_llama3_ids_are_those_of_the_reference(shared_dir):
    golden = shared_dir / "golden"
    expected = json.loads((golden / "step_boundaries_llama3.json").read_text())["llama3"]
    rows = [json.loads(line) for line in (golden / "examples_steps.jsonl").read_text().splitlines()]
    assert len(rows) == len(expected) == 8
    for row, want in zip(rows, expected, strict=True):
        ids = made.llama3_tokenizer().apply_chat_template(row["messages"], date_string="26 Jul 2024", return_dict=False)
        assert ids == want["input_ids"]


def test_llama3_special_tokens_have_their_true_ids():
    tokenizer = made.llama3_tokenizer()
    assert len(tokenizer) == 128256
    names = {
        128000: "<|begin_of_text|>",
        128004: "<|finetune_right_pad_id|>",
        128005: "<|reserved_special_token_2|>",
        128006: "<|start_header_id|>",
        128007: "<|end_header_id|>",
        128009: "<|eot_id|>",
        128010: "<|python_tag|>",
        128255: "<|reserved_special_token_247|>",
    }
    for number, name in names.items():
        assert made.special_id(tokenizer, name) == number
        assert encode(tokenizer, f"a{name}b") == [64, number, 65]
    with pytest.raises(KeyError):
        made.special_id(tokenizer, "<|im_start|>")


def test_what_each_adds_and_where_it_pads():
    llama3, tekken, bpe = made.llama3_tokenizer(), made.tekken_tokenizer(), made.byte_bpe_tokenizer()
    mistral = made.mistral_sentencepiece_tokenizer()
    assert [t("a")["input_ids"][0] for t in (llama3, mistral, tekken)] == [128000, 1, 1]
    assert len(llama3("a")["input_ids"]) == 2 and len(bpe("a")["input_ids"]) == 1
    assert [t.padding_side for t in (llama3, mistral, tekken, bpe)] == ["right", "left", "right", "right"]
    assert [t.pad_token_id for t in (llama3, mistral, tekken, bpe)] == [128004, None, 11, 0]
    assert [t.eos_token for t in (llama3, mistral, tekken, bpe)] == [
        "<|eot_id|>",
        "</s>",
        "</s>",
        "<|im_end|>",
    ]


def test_sentencepiece_marks():
    v1, v3 = made.mistral_sentencepiece_tokenizer("v1"), made.mistral_sentencepiece_tokenizer("v3")
    mark = made.MARK
    for tokenizer in (v1, v3):
        assert pieces(tokenizer, "\n\n") == [(mark, 0, 1), ("<0x0A>", 0, 1), ("<0x0A>", 1, 2)]
    assert pieces(v1, "a</s>b") == [(f"{mark}a", 0, 1), ("</s>", 1, 5), (f"{mark}b", 5, 6)]
    assert pieces(v3, "a</s>b") == [(f"{mark}a", 0, 1), ("</s>", 1, 5), ("b", 5, 6)]
    assert pieces(v1, " a") == [(mark, 0, 1), (f"{mark}a", 0, 2)]
    assert pieces(v3, " a") == [(f"{mark}a", 0, 2)]


@pytest.mark.parametrize("name", ["v1", "v3", "tekken"])
@pytest.mark.parametrize("messages", [DIALOGUE, DIALOGUE[1:]], ids=["system", "no_system"])
def test_mistral_chats_equal_the_original(name, messages):
    source = mistral_original(name)
    from mistral_common.protocol.instruct.request import ChatCompletionRequest

    want = source.encode_chat_completion(ChatCompletionRequest.from_openai(messages)).tokens
    assert converted(name).apply_chat_template(messages, return_dict=False) == want


def test_trained_bpe_joins_a_full_stop_and_a_blank_line():
    tokenizer = made.byte_bpe_tokenizer()
    assert len(tokenizer) == 600
    assert ".\u010a\u010a" in [token for token, *_ in pieces(tokenizer, "It is 17.\n\nSo")]
    for text in HARD:
        assert tokenizer.decode(encode(tokenizer, text)) == text
    small = made.byte_bpe_tokenizer(["aab aab aab"], vocab_size=300, template="zephyr")
    assert len(small) < 300 and small.eos_token == "</s>"


@pytest.mark.parametrize("name", ["llama3", "v1", "v3", "bpe"])
def test_saving_and_loading_changes_nothing(name, tmp_path):
    tokenizer = made.byte_bpe_tokenizer() if name == "bpe" else converted(name)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in HARD:
        assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"], ascii(text)
    assert loaded.padding_side == tokenizer.padding_side and len(loaded) == len(tokenizer)
    assert loaded.apply_chat_template(DIALOGUE) == tokenizer.apply_chat_template(DIALOGUE)


def test_a_fresh_copy_leaves_the_shared_one_alone():
    shared = made.byte_bpe_tokenizer()
    other = made.fresh(shared)
    other.add_tokens(["<|predictor_1|>"], special_tokens=True)
    assert len(other) == len(shared) + 1
    assert "<|predictor_1|>" not in shared.get_vocab()
    assert made.byte_bpe_tokenizer() is shared


def test_a_store_keeps_whole_files_only(tmp_path, monkeypatch):
    monkeypatch.setattr(made.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ZeroDivisionError):
        made._stored("broken", "tokenizers", lambda: 1 // 0)
    built = []

    def build():
        built.append(True)
        return Tokenizer(models.BPE())

    first, second = (made._stored("empty", "tokenizers", build) for _ in range(2))
    assert first == second and len(built) == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [first]
    with pytest.raises(pytest.skip.Exception, match="no-such-package"):
        made._stored("absent", "no-such-package", build)


def render(name, messages=DIALOGUE, **options):
    """The template's text under the small tokenizer, whose BOS is <s>. Gemma is given no system message."""
    tokenizer = made.byte_bpe_tokenizer(template=name)
    if name == "gemma" and messages is DIALOGUE:
        messages = DIALOGUE[1:]
    return tokenizer.apply_chat_template(messages, tokenize=False, **options)


ANSWERED = f"<|im_start|>user\n12+5?<|im_end|>\n<|im_start|>assistant\n{ANSWER}<|im_end|>\n"
GEMMA_ANSWERED = f"12+5?<end_of_turn>\n<start_of_turn>model\n{ANSWER}<end_of_turn>\n"


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("gemma", f"<s><start_of_turn>user\n{GEMMA_ANSWERED}"),
        ("gemma3", f"<s><start_of_turn>user\nBe brief.\n\n{GEMMA_ANSWERED}"),
        ("chatml", f"<|im_start|>system\nBe brief.<|im_end|>\n{ANSWERED}"),
        ("qwen2", f"<|im_start|>system\nBe brief.<|im_end|>\n{ANSWERED}"),
        ("mistral", f"<s>[INST] Be brief.\n\n12+5?[/INST] {ANSWER}</s>"),
        ("zephyr", f"<|system|>\nBe brief.</s>\n<|user|>\n12+5?</s>\n<|assistant|>\n{ANSWER}</s>\n"),
        ("plain_no_eot", f"System: Be brief.\nUser: 12+5?\nAssistant: {ANSWER}\n"),
    ],
)
def test_rendered_text(name, want):
    assert render(name) == want


@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name):
    form, text = FORMATS[name], render(name)
    before, after = text.split(ANSWER)
    assert after.strip("\n") == (form.end_of_turn or "")
    assert text.startswith("<s>") == form.writes_bos
    prompt = render(name, DIALOGUE[name == "gemma" : 2], add_generation_prompt=True, enable_thinking=False)
    assert before in (prompt, prompt + " ")
    tokenizer = made.byte_bpe_tokenizer(template=name)
    assert all(len(encode(tokenizer, marker)) == 1 for marker in form.markers)
    assert tokenizer.eos_token == form.eos


def test_another_template_brings_its_markers_behind_the_vocabulary():
    tokenizer = made.llama3_tokenizer("gemma3")
    assert [made.special_id(tokenizer, t) for t in FORMATS["gemma3"].markers] == [128256, 128257, 128258]
    assert tokenizer.eos_token == "<eos>" and tokenizer.bos_token == "<|begin_of_text|>"
    assert len(made.llama3_tokenizer()) == 128256


def test_templates_that_refuse_trim_and_add():
    with pytest.raises(Exception, match="System role not supported"):
        render("gemma", DIALOGUE[:2])
    for name in ("gemma", "gemma3", "mistral"):
        with pytest.raises(Exception, match="alternate"):
            render(name, DIALOGUE[2:])
    for name in ("llama3", "llama3_undated", "gemma", "gemma3"):
        assert f"\n{ANSWER}<" in render(name, [DIALOGUE[1], {"role": "assistant", "content": f" {ANSWER}\n "}])
    assert render("qwen2", DIALOGUE[1:]).startswith("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n")
    dates = "system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
    assert f"{dates}<|eot_id|>" in render("llama3", DIALOGUE[1:])
    assert "Today Date: 1 May 2020\n\nBe brief." in render("llama3", date_string="1 May 2020")
    days = [f"{datetime.now():%d %B %Y}"]
    text = render("dated")
    days.append(f"{datetime.now():%d %B %Y}")
    assert any(f"Today is {day}.\n\nBe brief.<|im_end|>" in text for day in days)


def test_qwen3_writes_reasoning_into_the_last_answer_only():
    thought = {"role": "assistant", "content": "<think>\nA sum.\n</think>\n\nIt is 17."}
    turns = [DIALOGUE[1], thought]
    last = "<|im_start|>assistant\n<think>\nA sum.\n</think>\n\nIt is 17.<|im_end|>\n"
    earlier = "<|im_start|>assistant\nIt is 17.<|im_end|>\n"
    question = "<|im_start|>user\n12+5?<|im_end|>\n"
    assert render("qwen3", turns) == question + last
    assert render("qwen3", turns * 2) == question + earlier + question + last
    assert "<think>\n\n</think>\n\n12 + 5" in render("qwen3")
