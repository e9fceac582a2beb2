"""What is asked is what was trained: the text before an answer, in every chat template that is at hand."""

import json

import pytest

from stepjepa.data.answers import final_answer
from stepjepa.data.blocks import answer_of, opened_in
from stepjepa.data.chat import check_messages
from stepjepa.data.encode import encode_dataset
from stepjepa.data.sources import RowSource
from stepjepa.data.template import ChatRenderer
from stepjepa.data.tokens import Prompter
from stepjepa.errors import RowError, attempted
from stepjepa.evaluation.options import EvaluateOptions
from stepjepa.generation.place import Place
from stepjepa.inspect.check import read_tokens
from stepjepa.inspect.statistics import TextReader
from stepjepa.modeling.card import CARD, Records, write_card
from stepjepa.training.options import JEPAOptions
from support.checks import check_format, warned
from support.encoding import settings_of
from support.trl_templates import IN_PARTS, template, templates, tokenizer_with

THINKING = "<think>\nTwo and two.\n</think>\n\n"


def chat(*texts, system=None, **more):
    """Turns of these texts, of the user and of the assistant; `more` are other keys of the assistant's."""
    turns = [{"role": "user", "content": text} for text in texts]
    turns[1::2] = [{"role": "assistant", "content": text, **more} for text in texts[1::2]]
    return turns if system is None else [{"role": "system", "content": system}, *turns]


QUESTION = "What is 2 + 2?"
CHATS = {
    "one turn": chat(QUESTION, "It is 4."),
    "system": chat(QUESTION, "It is 4.", system="Be brief."),
    "two turns": chat(QUESTION, "It is 4.", "And 3 + 3?", "It is 6."),
    "three turns": chat(QUESTION, "It is 4.", "And 3 + 3?", "It is 6.", "1?", "1."),
    "thinking": chat(QUESTION, f"{THINKING}It is 4."),
    "thinking in two turns": chat(QUESTION, f"{THINKING}It is 4.", "And?", f"{THINKING}It is 6."),
    "thinking apart": chat(QUESTION, "It is 4.", reasoning_content="Two and two."),
    "thinking apart in two turns": chat(QUESTION, "It is 4.", "And?", "It is 6.", reasoning_content="Two and two."),
    "blank lines": chat(QUESTION, "\n\nIt is 4.\n\n"),
}
SWITCHES = ({}, {"enable_thinking": True}, {"enable_thinking": False})


def assert_asked_as_trained(tokenizer, messages, **kwargs):
    """Each answer of a chat: the prompt without what the chat does not have is the text before what is labelled, in
    characters and in tokens. Returns how many answers were compared."""
    renderer = ChatRenderer(tokenizer, kwargs)
    rendered = attempted(renderer.render, messages)
    if isinstance(rendered, RowError):
        assert rendered.reason == "template_refused", rendered
        return 0
    settings = settings_of("regular", max_length=4096)
    (example,), report = encode_dataset([{"messages": messages}], tokenizer, renderer, settings)
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    spans = [span for span in rendered.spans if span.role == "assistant"]
    for index, span, opening, begin in zip(answers, spans, rendered.openings, rendered.begins, strict=True):
        assert opening is not None and not opening.apart
        shown = rendered.text[span.start : span.end]
        assert shown.strip() and shown.strip().endswith(messages[index]["content"].strip().rpartition("\n")[2])
        asked = renderer.prompt(messages[:index]).removesuffix(opening.extra)
        into = rendered.text.startswith(asked) and len(asked) > begin  # the answer brings the end of the prompt itself
        assert into or rendered.text[:begin] == asked
        assert begin <= span.start and rendered.text[begin : span.start] == opening.written
        if not into:
            prompt = tokenizer(asked, add_special_tokens=False)["input_ids"]
            assert example.trunk[: len(prompt)].tolist() == prompt
            assert any(start == len(prompt) for start, _ in example.labels)
    assert report.prompts.answers == len(answers)
    return len(answers)


@pytest.mark.parametrize("name", templates() or [pytest.param("any", marks=pytest.mark.skip("needs TRL's templates"))])
def test_every_template_of_trl_is_asked_as_it_is_trained(name):
    tokenizer, compared = tokenizer_with(template(name)), 0
    if name.removesuffix("_training") in IN_PARTS:
        for messages in CHATS.values():
            assert isinstance(attempted(ChatRenderer(tokenizer).render, messages), RowError)
        return
    for messages in CHATS.values():
        for kwargs in SWITCHES if "enable_thinking" in template(name) else SWITCHES[:1]:
            compared += assert_asked_as_trained(tokenizer, messages, **kwargs)
    assert compared >= 8


# What the template writes before an answer that its generation prompt does not have, and the other way round.
KINDS = {
    "qwen2_5": ("", ""),
    "gptoss": ("<|channel|>final<|message|>", ""),
    "muse_glimmer": (" to=user<|message|>", ""),
    "qwen3": ("<think>\n\n</think>\n\n", ""),
    "qwen3_5_think": ("\n</think>\n\n", ""),
    "glm4moe": ("\n<think></think>\n", ""),
    "nemotron_3_nano": ("</think>", "\n"),
    "deepseek_r1_distill": ("", "<think>\n"),
}


def report_of(name, rows, objective="regular", **options):
    tokenizer = tokenizer_with(template(name) if name in templates() or "{" not in name else name)
    renderer = ChatRenderer(tokenizer, options.pop("kwargs", None))
    store, report = encode_dataset(rows, tokenizer, renderer, settings_of(objective, max_length=4096, **options))
    return tokenizer, store, report


@pytest.mark.parametrize("name", KINDS)
def test_what_the_template_writes_before_an_answer_is_labelled_and_reported(name):
    written, extra = KINDS[name]
    rows = [{"messages": CHATS["one turn"]}, {"messages": CHATS["system"]}]
    tokenizer, store, report = report_of(name, rows)
    for example in store:
        labels = [tokenizer.decode(example.trunk[slice(*span)].tolist()) for span in example.labels]
        assert len(labels) == 1 and labels[0].startswith(f"{written}It is 4.")
    assert report.prompts.endings == {extra: 2} and report.prompts.answers == 2
    assert report.prompts.written == (2 if written.strip() else 0)
    assert report.prompts.opened == (2 if extra.strip() else 0)
    lines = "\n".join(report.lines())
    assert ("before 2 of 2 answers the template writes text" in lines) is bool(written.strip())
    assert ("the text before 2 of 2 answers differs from the generation prompt" in lines) is bool(extra.strip())
    if "enable_thinking" in template(name):  # and with the switch that the line names there is nothing to say
        assert "; --chat_template_kwargs may change this (the template reads enable_thinking)" in lines
        _, _, other = report_of(name, rows, kwargs={"enable_thinking": False})
        assert other.prompts.written == 0 and not other.prompts.warnings()
    # White space alone is not worth a word.
    assert name != "qwen2_5" or report.prompts.lines() == []


def test_prompts_are_what_was_trained_unless_something_else_is_asked_for():
    tokenizer = tokenizer_with(template("deepseek_r1_distill"))
    header = "<s><\uff5cUser\uff5c>What is 2 + 2?<\uff5cAssistant\uff5c>"

    def prompt(prompt_from, trained):
        made = Prompter(tokenizer, None, False, None, prompt_from, trained)
        return made.text(chat(QUESTION)), bool(made.note)

    opened = f"{header}<think>\n"
    assert prompt(None, None) == (opened, True)  # a model from elsewhere, and one note
    assert prompt("template", None) == prompt("template", "<think>\n") == prompt(None, "") == (opened, False)
    assert prompt("training", None) == prompt(None, "<think>\n") == prompt("training", "<think>\n") == (header, False)


@pytest.mark.parametrize(
    ("name", "kwargs", "asked", "on_card"),
    [
        ("qwen3", {"enable_thinking": False}, "<think>\n\n</think>\n\n", "enable_thinking=False"),
        ("deepseek_r1_distill", {}, "<\uff5cAssistant\uff5c>", "removesuffix('<think>\\n')"),
    ],
)
def test_what_a_run_was_trained_with_is_what_its_model_and_its_card_ask_with(name, kwargs, asked, on_card, tmp_path):
    tokenizer, _, report = report_of(name, [{"messages": CHATS["one turn"]}], kwargs=kwargs)
    run, data = {"settings": {"chat_template_kwargs": kwargs}}, {"train": report.to_dict()}
    (tmp_path / "run.json").write_text(json.dumps(run))
    (tmp_path / "data_report.json").write_text(json.dumps(data))
    prompter = Place(str(tmp_path), tmp_path).prompter(tokenizer, EvaluateOptions())
    assert prompter.text(chat(QUESTION)).endswith(asked)
    write_card(tmp_path, "model", Records(run=run, data=data), tokenizer)
    assert on_card in (tmp_path / CARD).read_text()


@pytest.mark.parametrize("name", ["gptoss", "muse_glimmer", "qwen3", "qwen3_5_think", "nemotron_3_nano", "qwen2_5"])
def test_a_response_is_what_comes_after_the_text_that_the_template_writes(name):
    tokenizer = tokenizer_with(template(name))
    prompter = Prompter(tokenizer, prompt_from="template")
    prompt = prompter.ids(chat(QUESTION))

    def response(text, *prompt):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        return prompter.response(ids, tokenizer.decode(ids, skip_special_tokens=True), *prompt)

    written = KINDS[name][0]
    assert response(f"{written}It is 4.\n\nSo 4.") == "It is 4.\n\nSo 4."
    assert response("It is 4.") == "It is 4." and response("") == ""
    # Thinking that the prompt has opened, or the response, and that has not ended is no answer.
    opened = opened_in(tokenizer, prompt)
    assert opened == ("<think>\n" if name in ("qwen3_5_think", "nemotron_3_nano") else "")
    assert answer_of(response(f"{written}It is 4.", prompt)) == "It is 4."
    opening = "<|channel|>analysis<|message|>" if name == "gptoss" else "" if opened else "<think>"
    assert final_answer(response(f"{opening}Is it 7?", prompt)) is None
    if name == "gptoss":
        thoughts = "<|channel|>analysis<|message|>Two and two.<|end|><|start|>assistant"
        assert response(f"{thoughts}{written}4") == "4"


def test_what_a_template_leaves_out_of_an_answer_is_counted():
    rows = [{"messages": CHATS[name]} for name in ("one turn", "thinking", "thinking in two turns")]
    _, _, report = report_of("deepseek_r1_distill", rows)
    assert report.prompts.left_out == 2
    (line,) = [line for line in report.lines() if "leaves out" in line]
    assert "part of the answer in 2 rows (first: list row 1: '<think>" in line
    _, _, report = report_of("qwen3", rows)  # in earlier turns
    assert report.prompts.left_out == 1
    _, _, report = report_of("lfm2_2_5", rows)
    (line,) = [line for line in report.lines() if "leaves out" in line]
    assert line.endswith("; --chat_template_kwargs may change this (the template reads preserve_thinking)")
    _, _, report = report_of("qwen3_training", rows)
    assert not report.prompts.left_out and not report.prompts.warnings()


def test_check_counts_the_steps_that_the_model_gets():
    answer = "<think>\nOne.\n\nTwo.\n</think>\n\nThree.\n\nFour.\n\nFive."
    rows = [{"messages": chat(QUESTION, answer)} for _ in range(12)]
    method = JEPAOptions(objective="step_jepa", step_splitter="separator", step_pairs="all")
    reader = TextReader(RowSource(rows), method)
    tokens = read_tokens(reader, tokenizer_with(template("deepseek_r1_distill")), method, "any")
    assert reader.texts.step_counts == {3: 12} and reader.texts.pairs_all == tokens.data.pairs == 24
    assert {"prompt_opened", "prompt_left_out"} <= set(warned(tokens))
    assert check_format(rows).step_counts == {4: 12}  # without a tokenizer there is no template


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_thinking_in_a_key_of_its_own_reaches_the_template(key):
    messages = check_messages(chat(QUESTION, "It is 4.", **{key: "Two and two."}))
    own = "{% for m in messages %}<|{{ m.role }}|>{{ m.thinking }}#{{ m.content }}{% endfor %}"
    for name, shown in (
        ("qwen3", "<think>\nTwo and two.\n</think>\n\nIt is 4."),
        ("glm4moe", "<think>Two and two.</think>\nIt is 4."),
        (own, "Two and two.#It is 4."),
    ):
        tokenizer, store, report = report_of(name, [{"messages": messages}])
        (labels,) = store[0].labels
        assert shown in tokenizer.decode(store[0].trunk[slice(*labels)].tolist())
        assert not report.prompts.left_out and not report.prompts.written
    _, _, report = report_of("llama3_1", [{"messages": CHATS["one turn"]}, {"messages": messages}])
    assert report.prompts.left_out == 1
