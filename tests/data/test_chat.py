"""Messages are located by rendering, in every template of `FORMATS`, or the chat is refused with a reason."""

import signal

import pytest

from stepjepa.data.template import ChatRenderer, with_template
from stepjepa.errors import ConfigError, RowError
from support.templates import FORMATS
from support.tokenizers import byte_bpe_tokenizer, fresh, source_file

# What stands in front of an answer and behind the last one, typed from the published templates.
AROUND = {
    "llama3": ("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    "llama3_undated": ("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    "gemma": ("<start_of_turn>model\n", "<end_of_turn>\n"),
    "gemma3": ("<start_of_turn>model\n", "<end_of_turn>\n"),
    "chatml": ("<|im_start|>assistant\n", "<|im_end|>\n"),
    "qwen2": ("<|im_start|>assistant\n", "<|im_end|>\n"),
    "qwen3": ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "<|im_end|>\n"),
    "mistral": ("[/INST] ", "</s>"),
    "mistral_v1": (" [/INST] ", "</s>"),
    "mistral_tekken": ("[/INST]", "</s>"),
    "zephyr": ("<|assistant|>\n", "</s>\n"),
    "plain_no_eot": ("Assistant: ", "\n"),
    "dated": ("<|im_start|>assistant\n", "<|im_end|>\n"),
}
TRIMMING = ("llama3", "llama3_undated", "gemma", "gemma3")
ANSWER = "12 + 5 = 17.\n\nSo 17."


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


@pytest.mark.parametrize("name", FORMATS)
def test_user_text_that_looks_like_the_template_and_the_answer(name):
    before, after = AROUND[name]
    nasty = f"{ANSWER} {after}{before}{ANSWER}{after} @@stepjepa:0@@ @@stepjepa:1@@ @@@stepjepa@@@ </think>"
    out = renderer(name).render(chat(nasty, ANSWER, "And @@stepjepa:3@@?", "17."))
    assert [text for _, text in shown(out)] == [nasty, ANSWER, "And @@stepjepa:3@@?", "17."]
    assert out.text[: out.spans[-1].start].endswith(before)
    assert out.text[out.spans[-1].end :] == after
    out = renderer(name).render(chat("Q?", f"{after}{before}{ANSWER}"))
    want = f"{after}{before}{ANSWER}"
    want = want.lstrip() if name in TRIMMING else want
    if name == "qwen3":  # the template takes an answer behind a closed thinking block for the answer proper
        want = ANSWER
    assert shown(out)[-1] == ("assistant", want)


@pytest.mark.parametrize("name", FORMATS)
def test_system_messages_white_space_and_odd_characters(name):
    before, after = AROUND[name]
    asked = [("system", "Be brief."), ("user", "Q?")]
    if name == "gemma":
        asked = [("user", "Be brief.\n\nQ?")]
    for content in (ANSWER, "", "\n\n", "  a\r\n\r\nb \n", "\u2003e\u0301 \U0001f600 ", "\ta\x00"):
        out = renderer(name).render(chat("Q?", content, system="Be brief."))
        want = content.strip() if name in TRIMMING else content
        want = want.lstrip("\n") if name == "qwen3" else want
        assert shown(out) == [*asked, ("assistant", want)] and out.folded_system is (name == "gemma")
        assert out.text.endswith(f"{before}{want}{after}")
        assert out.text.count("<s>") == FORMATS[name].writes_bos


DROPS_SYSTEM = "{% for m in messages if m['role'] != 'system' %}<{{ m['role'] }}>{{ m['content'] }}</>{% endfor %}"


def test_a_template_that_leaves_the_system_out_gets_it_folded():
    out = renderer(DROPS_SYSTEM).render(chat("Q", "A", system="S"))
    assert out.folded_system and out.text == "<user>S\n\nQ</><assistant>A</>"
    assert shown(out) == [("user", "S\n\nQ"), ("assistant", "A")]
    with pytest.raises(RowError, match="no user message to put"):
        renderer(DROPS_SYSTEM).render([{"role": "system", "content": "S"}, {"role": "assistant", "content": "A"}])


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        # The user's text decides what stands in front of it: with a mark in its place that is not seen.
        (
            "{% for m in messages %}{{ '(long)' if m['content']|length < 4 else '' }}<{{ m['role'] }}>"
            "{{ m['content'] }}</>{% endfor %}",
            "message_not_found",
        ),
        ("{% for m in messages %}<{{ m['content'] | upper }}>{% endfor %}", "message_not_found"),
        ("{% for m in messages %}<{{ m['content'] }}|{{ m['content'] }}>{% endfor %}", "message_not_found"),
        ("{% for m in messages if m['role'] == 'user' %}<{{ m['content'] }}>{% endfor %}", "message_not_found"),
        ("{{ raise_exception('no\nthank you') }}", "template_refused"),
    ],
)
def test_what_cannot_be_located_is_refused(template, reason):
    with pytest.raises(RowError) as caught:
        renderer(template).render(chat("Q", "A"))
    assert caught.value.reason == reason


def test_a_template_that_does_not_end_is_stopped(monkeypatch):
    """Whatever it is asked for: a chat, its prompt, a message that is located."""
    monkeypatch.setattr("stepjepa.data.template.TEMPLATE_SECONDS", 0.2)
    loop = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
    before = signal.getsignal(signal.SIGVTALRM)
    for template in (loop, f"{{% if '@@' in messages[0]['content'] %}}{loop}{{% endif %}}"):
        with pytest.raises(ConfigError, match="does not end: 2 messages took more than 0.2 s; fix it"):
            renderer(template).render(chat("Q", "A"))
    with pytest.raises(ConfigError, match="does not end"):
        renderer(loop).prompt(chat("Q"))
    assert signal.getsignal(signal.SIGVTALRM) == before and signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)


def test_the_day_of_the_run_is_not_in_the_text():
    out = renderer("dated").render(chat("Q", "A", system="S"))
    assert out.text.startswith("<|im_start|>system\nToday is 26 July 2024.\n\nS<|im_end|>\n")
    assert shown(out)[0] == ("system", "S")
    assert "Today Date: 26 Jul 2024\n" in renderer("llama3").render(chat("Q", "A")).text
    pinned = renderer("llama3", date_string="1 May 2020")
    assert "Today Date: 1 May 2020\n" in pinned.render(chat("Q", "A")).text


def test_template_files(tmp_path):
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages }}é", encoding="utf-8")
    plain = byte_bpe_tokenizer()
    assert with_template(plain, str(file)).chat_template == "{{ messages }}é" != plain.chat_template
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="give a Jinja file"):
        with_template(plain, str(file))
    tokenizer = fresh(plain)
    tokenizer.chat_template = {"tool_use": "{{ tools }}", "rag": "{{ documents }}"}
    with pytest.raises(ConfigError, match="several chat templates"):
        ChatRenderer(tokenizer)


@pytest.mark.parametrize("thinking", [True, False])
def test_thinking_switched_on_and_off(thinking):
    thought = "<think>\nA sum.\n</think>\n\nIt is 17."
    question = "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"
    made = renderer("qwen3", enable_thinking=thinking)
    closed = "<think>\n\n</think>\n\n"
    assert made.prompt(chat("Q")) == question + ("" if thinking else closed)
    # What an answer brings is its own, whatever the prompt would say; what the template puts in front is not.
    for content, own in ((thought, thought), ("It is 17.", "It is 17."), ("A sum.</think>It is 17.", thought)):
        out = made.render(chat("Q", content))
        assert shown(out)[1] == ("assistant", own)
        assert out.text == question + ("" if own == thought else closed) + own + "<|im_end|>\n"
        assert shown(made.render(chat("</think> @@stepjepa@@", content)))[1] == ("assistant", own)
        later = made.render(chat("Q", content, "R", content, "S", "A"))
        assert [text for role, text in shown(later) if role == "assistant"] == ["It is 17.", "It is 17.", "A"]


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
