"""Chat templates that are told something: switches such as `enable_thinking`, and templates of other kinds."""

import pytest

from stepjepa.data.chat import ChatRenderer
from stepjepa.errors import ConfigError
from support.templates import FORMATS, LLAMA4, MISTRAL_V7, R1_LIKE, SMOLLM3_LIKE
from support.tokenizers import byte_bpe_tokenizer, fresh, source_file


def renderer(template, **switches):
    """A renderer of `FORMATS[template]`, or of a template given as text."""
    if template in FORMATS:
        return ChatRenderer(byte_bpe_tokenizer(template=template), switches)
    tokenizer = fresh(byte_bpe_tokenizer())
    tokenizer.chat_template = template
    return ChatRenderer(tokenizer, switches)


def chat(*contents, system=None):
    roles = ("user", "assistant") * len(contents)
    turns = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
    return turns if system is None else [{"role": "system", "content": system}, *turns]


def shown(rendered):
    return [(span.role, rendered.text[span.start : span.end]) for span in rendered.spans]


@pytest.mark.parametrize("thinking", [True, False])
def test_thinking_switched_on_and_off(thinking):
    thought, question = (
        "<think>\nA sum.\n</think>\n\nIt is 17.",
        "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n",
    )
    made = renderer("qwen3", enable_thinking=thinking)
    closed = "<think>\n\n</think>\n\n"
    assert made.prompt(chat("Q")) == question + ("" if thinking else closed)
    # What an answer brings is its own, whatever the prompt would say; what the template puts in front is not.
    for content, own in ((thought, thought), ("It is 17.", "It is 17."), ("A sum.</think>It is 17.", thought)):
        out = made.render(chat("Q", content))
        assert shown(out)[1] == ("assistant", own)
        assert out.text == question + ("" if own == thought else closed) + own + "<|im_end|>\n"
        later = made.render(chat("Q", content, "R", content, "S", "A"))
        assert [text for role, text in shown(later) if role == "assistant"] == ["It is 17.", "It is 17.", "A"]


def test_reasoning_that_the_template_drops_is_in_no_span():
    made = renderer(R1_LIKE)
    thought = "<think>\nA sum.\n</think>\n\nIt is 17."
    out = made.render(chat("Q", thought, "R", "A sum.</think>17.", system="S"))
    assert out.text == "<s>S<|User|>Q<|Assistant|>\n\nIt is 17.<|im_end|><|User|>R<|Assistant|>17.<|im_end|>"
    assert shown(out) == [
        ("system", "S"), ("user", "Q"), ("assistant", "\n\nIt is 17."), ("user", "R"), ("assistant", "17."),
    ]  # fmt: skip
    assert made.prompt(chat("Q")) == "<s><|User|>Q<|Assistant|><think>\n"


def test_a_template_that_reads_its_switches_in_the_system_turn():
    day = "<|im_start|>system\nToday Date: 26 July 2024\nReasoning Mode: "
    for thinking, mode, block in (
        (None, "/think", ""),
        (True, "/think", ""),
        (False, "/no_think", "<think>\n\n</think>\n"),
    ):
        switches = {} if thinking is None else {"enable_thinking": thinking}
        out = renderer(SMOLLM3_LIKE, **switches).render(chat("Q", "A", "R", "B"))
        assert out.text.startswith(f"{day}{mode}<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n")
        assert out.text.endswith(f"<|im_start|>assistant\n{block}B<|im_end|>\n")
        assert shown(out) == [("user", "Q"), ("assistant", "A"), ("user", "R"), ("assistant", "B")]


def test_what_is_not_the_templates_cannot_be_passed_to_it():
    for name in ("tokenize", "messages", "add_generation_prompt", "chat_template"):
        with pytest.raises(ConfigError, match=f"chat_template_kwargs: {name} cannot be set"):
            renderer("chatml", **{name: True})
    tools = [{"type": "function", "function": {"name": "add"}}]
    template = "{{ tools[0].function.name }}{% for m in messages %}<{{ m['content'] }}>{% endfor %}"
    assert renderer(template, tools=tools).render(chat("Q", "A")).text == "add<Q><A>"


def test_turns_under_other_names():
    out = renderer(LLAMA4).render(chat(" Q ", "A.\n\nB. ", system="S"))
    head = "<s><|header_start|>system<|header_end|>\n\nS<|eot|><|header_start|>user<|header_end|>\n\nQ<|eot|>"
    assert out.text == f"{head}<|header_start|>assistant<|header_end|>\n\nA.\n\nB.<|eot|>"
    assert shown(out) == [("system", "S"), ("user", "Q"), ("assistant", "A.\n\nB.")]
    out = renderer(MISTRAL_V7).render(chat("Q", "A", "R", " B ", system="S"))
    assert out.text == "<s>[SYSTEM_PROMPT] S[/SYSTEM_PROMPT][INST] Q[/INST] A<|im_end|>[INST] R[/INST]  B <|im_end|>"
    assert shown(out) == [("system", "S"), ("user", "Q"), ("assistant", "A"), ("user", "R"), ("assistant", " B ")]


def test_one_of_several_templates():
    tokenizer = fresh(byte_bpe_tokenizer())
    tokenizer.chat_template = {
        "tool_use": "{{ tools }}",
        "default": "{% for m in messages %}<{{ m['content'] }}>{% endfor %}",
    }
    assert shown(ChatRenderer(tokenizer).render(chat("Q", "A"))) == [("user", "Q"), ("assistant", "A")]
    tokenizer.chat_template = {"tool_use": "{{ tools }}", "rag": "{{ documents }}"}
    with pytest.raises(ConfigError, match="several chat templates"):
        ChatRenderer(tokenizer)


def test_mistral_commons_tokenizer_is_refused_for_chats():
    """It encodes control tokens in a text as plain text, and its own chats cannot be tokenised by their text."""
    pytest.importorskip("mistral_common")
    from transformers import MistralCommonBackend

    tokenizer = MistralCommonBackend(str(source_file("mistral_common", "data/*.model.v3")))
    assert len(tokenizer("<s>", add_special_tokens=False)["input_ids"]) > 1
    for template in (None, "{% for m in messages %}<{{ m['content'] }}>{% endfor %}"):
        tokenizer.chat_template = template
        with pytest.raises(ConfigError, match="mistral_format=False"):
            ChatRenderer(tokenizer)
