"""Rows with tools: how calls and results are read, what of them is labelled, and where the views are."""

import json

import numpy as np
import pytest

from stepjepa.data.chat import check_messages, row_to_messages
from stepjepa.data.encode import encode_dataset
from stepjepa.data.template import ChatRenderer
from stepjepa.data.tokens import Prompter
from stepjepa.errors import DataError, RowError
from support.encoding import settings_of, views_of
from support.templates import CHATML
from support.tool_rows import (
    ANSWER,
    CHATS,
    FIRST,
    ONE,
    QUESTION,
    SECOND,
    TOOLS,
    TWO_CALLS,
    answer,
    call,
    result,
    row,
    tool_tokenizer,
    user,
)
from support.trl_templates import template, tokenizer_with

READ = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
OSLO = {"name": "weather", "arguments": '{"city": "Oslo"}'}


def encoded(name, messages, objective="regular", more=None, **options):
    """A row's one example, its tokenizer and the report, for a template or its name."""
    tokenizer = tokenizer_with(name) if "{" in name else tool_tokenizer(name)
    settings = settings_of(objective, **{"max_length": 8192, **options})
    (example,), report = encode_dataset([row(messages, **more or {})], tokenizer, ChatRenderer(tokenizer), settings)
    return example, tokenizer, report


def texts(tokenizer, example, spans):
    return [tokenizer.decode(example.trunk[start:stop].tolist()) for start, stop in spans]


# Reading


@pytest.mark.parametrize(
    ("messages", "read"),
    [
        ([user("Q"), {"role": "assistant", "content": None, "tool_calls": [{"function": OSLO}]}], [READ]),
        ([user("Q"), {"role": "assistant", "tool_calls": json.dumps([{"id": "a", **READ}])}], [{"id": "a", **READ}]),
        ([user("Q"), {"role": "assistant", "content": "", "tool_calls": [OSLO]}], [READ]),
        ([user("Q"), {"role": "assistant", "content": None, "tool_calls": None, "function_call": OSLO}], [READ]),
        ([{"from": "human", "value": "Q"}, {"from": "function_call", "value": json.dumps(OSLO)}], [READ]),
        ([{"from": "human", "value": "Q"}, {"from": "function_call", "value": json.dumps([OSLO, OSLO])}], [READ] * 2),
        # What a table of calls to several functions has filled up.
        ([call(tool_calls=[{"function": {"name": "weather", "arguments": {"city": "Oslo", "x": None}}}])], [READ]),
    ],
)
def test_calls_are_read_in_one_form(messages, read):
    checked = check_messages(messages)
    assert checked[-1] == {"role": "assistant", "content": "", "tool_calls": read}
    assert check_messages(checked) == checked


def test_arguments_and_results():
    def arguments(given):
        (calling,) = check_messages([call(tool_calls=[{"function": {"name": "f", "arguments": given}}])])
        return calling["tool_calls"][0]["function"]["arguments"]

    assert [arguments(given) for given in (None, "", "{}", {}, ' {"a": 1.0}')] == [{}, {}, {}, {}, {"a": 1.0}]
    # A table fills objects with nulls, but not JSON text, in which they are the caller's.
    assert [arguments(given) for given in ('{"a": null}', {"a": None})] == [{"a": None}, {}]
    calling = call(tool_calls=[{"function": {"name": "f", "arguments": '{"a": null}'}}])
    row = {"system": "Be brief.", "messages": [user("Q"), calling]}
    assert row_to_messages(row)[-1]["tool_calls"][0]["function"]["arguments"] == {"a": None}
    assert arguments("city=Oslo") == "city=Oslo" and arguments("[1]") == "[1]"  # the template decides
    for role in ("tool", "ipython", "function", "observation"):
        assert check_messages([{**result(), "role": role}, answer("A")])[0] == result()
    turns = [{"from": "observation", "value": "5"}, {"from": "gpt", "value": "A"}]
    *_, shown, _ = row_to_messages({"conversations": turns})
    assert shown == {"role": "tool", "content": "5"}


@pytest.mark.parametrize(
    ("message", "reason", "words"),
    [
        ({"tool_calls": "weather(Oslo)"}, "bad_tool_call", "message 1 (assistant) has tool calls that are not a list"),
        ({"tool_calls": [{"function": {"name": " ", "arguments": {}}}]}, "bad_tool_call", "without a function name"),
        ({"from": "function_call", "value": "<call> f"}, "bad_tool_call", "not a list"),
        ({"tool_calls": [{"name": "f", "arguments": {"a": "\ud83d"}}]}, "broken_text", "contains the lone surrogate"),
        ({"role": "tool", "content": {"degrees": 22}}, "content_not_text", "message 1 (tool) has content of type dict"),
    ],
)
def test_calls_that_cannot_be_read(message, reason, words):
    given = message if "from" in message else {"role": "assistant", "content": None, **message}
    with pytest.raises(RowError) as caught:
        check_messages([given])
    assert caught.value.reason == reason and words in str(caught.value) and "\n" not in str(caught.value)


# Labels

JSON_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "%s"}}\n</tool_call>'
HERMES_CALL = '<tool_call>\n{"arguments": {"city": "%s"}, "name": "weather"}\n</tool_call>'
V3_CALL = '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "%s"}, "id": "%s"}]'
NO_THOUGHT = "<think>\n\n</think>\n\n"
END, EOT = "<|im_end|>", "<|eot_id|>"
TO_TOOL = ' to=functions.weather<|channel|>commentary json<|message|>{"city": "%s"}<|call|>'
FINAL = "<|channel|>final<|message|>"
LABELS = {
    "llama3_1": [f'{{"name": "weather", "parameters": {{"city": "{city}"}}}}{EOT}' for city in ("Oslo", "Rome")]
    + [f"{ANSWER}{EOT}"],
    "qwen2_5": [f"{JSON_CALL % 'Oslo'}{END}", f"{JSON_CALL % 'Rome'}{END}", f"{ANSWER}{END}"],
    "qwen3": [f"{JSON_CALL % 'Oslo'}{END}", f"{JSON_CALL % 'Rome'}{END}", f"{NO_THOUGHT}{ANSWER}{END}"],
    "gptoss": [TO_TOOL % "Oslo", TO_TOOL % "Rome", f"{FINAL}{ANSWER}<|return|>"],
    "hermes": [f"{HERMES_CALL % 'Oslo'}{END}", f"{HERMES_CALL % 'Rome'}{END}", f"{ANSWER}{END}"],
    "mistral_v3": [f"{V3_CALL % ('Oslo', FIRST)}{END}", f"{V3_CALL % ('Rome', SECOND)}{END}", f" {ANSWER}{END}"],
    "mistral_v11": [
        f'[TOOL_CALLS]weather[ARGS]{{"city": "Oslo"}}{END}',
        f'[TOOL_CALLS]weather[ARGS]{{"city": "Rome"}}{END}',
        f" {ANSWER}{END}",
    ],
    "deepseekv3": [
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"city": "Oslo"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>',
    ],
    "glm4moe": [
        "\n<think></think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>"
    ],
}


@pytest.mark.parametrize("name", LABELS)
def test_calls_and_answers_are_labelled_and_results_are_not(name):
    example, tokenizer, report = encoded(name, TWO_CALLS)
    labels = texts(tokenizer, example, example.labels)
    assert labels[: len(LABELS[name])] == LABELS[name] and len(labels) == 3
    rendered = tokenizer.decode(example.trunk.tolist())
    assert "degrees" in rendered and "cloudy" in rendered
    # DeepSeek's template does not write the tools, which is reported.
    assert ("The weather in a city" in rendered) is (report.unread == {}) is (name != "deepseekv3")
    # Nor are results in any other mode, nor a call that is switched off.
    for mode in ("all", "reference"):
        example, tokenizer, _ = encoded(name, TWO_CALLS, labels=mode)
        labelled = "".join(texts(tokenizer, example, example.labels))
        assert '"degrees": 22' not in labelled.replace("\\", "") and "cloudy" not in labelled and ANSWER in labelled
    example, tokenizer, _ = encoded(name, [*TWO_CALLS[:1], {**call(), "weight": 0}, *TWO_CALLS[2:]])
    assert texts(tokenizer, example, example.labels) == labels[1:]
    example, tokenizer, _ = encoded(name, TWO_CALLS, train_on="last")
    assert texts(tokenizer, example, example.labels) == labels[2:]


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("gptoss", ["<|call|>", "<|return|>"]),
        ("glm4moe_training", ["<|observation|>", "<|user|>"]),
        ("gemma4_v5", ["<turn|>", "<|tool_response>"]),
        ("qwen3", [END]),
        ("mistral_v3", [END]),
        ("llama3_1", [EOT]),
    ],
)
def test_generation_stops_after_an_answer_and_after_a_call(name, ends):
    tokenizer = tool_tokenizer(name)
    expected = {*tokenizer.convert_tokens_to_ids(ends), tokenizer.eos_token_id}
    assert set(Prompter(tokenizer).stop_ids(None)) == expected


def test_a_row_that_ends_in_a_call():
    for name in ("qwen2_5", "mistral_v3", "gptoss", "llama3_1"):
        example, tokenizer, report = encoded(name, ONE[:2], "llm_jepa")
        (label,) = texts(tokenizer, example, example.labels)
        assert label == LABELS[name][0] and not example.pairs
        assert report.examples_without_pairs == {"no_answer_in_text": 1}
        assert report.end_token == label[label.rindex("<") :]
    # Where the template ends no turn, an EOS does.
    example, tokenizer, _ = encoded("glm4moe", ONE[:2])
    assert texts(tokenizer, example, example.labels) == [f"{LABELS['glm4moe'][0]}{tokenizer.eos_token}"]


# One of every family that marks what the model writes.
FAMILIES = "qwen2_5 qwen3 qwen3_5_think gptoss glm4moe muse_glimmer nemotron_3_nano deepseekv3 lfm2_v2".split()


@pytest.mark.parametrize("family", FAMILIES)
def test_labels_are_those_of_generation_marks(family):
    """All tokens that a template marks are labelled, but for the generation prompt and a line break at the end."""
    tokenizer, settings = tokenizer_with(template(f"{family}_training")), settings_of("regular", max_length=8192)
    compared = 0
    for messages in CHATS.values():
        renderer = ChatRenderer(tokenizer, {"tools": TOOLS})
        try:
            (example,), _ = encode_dataset([row(messages)], tokenizer, ChatRenderer(tokenizer), settings)
        except DataError as error:
            assert "template refused" in str(error)
            continue
        checked = [renderer._as_template_reads(message) for message in check_messages(messages)]
        options = {**renderer.kwargs, "chat_template": renderer.template, "return_dict": True}
        marked = tokenizer.apply_chat_template(checked, return_assistant_tokens_mask=True, **options)
        assert marked["input_ids"] == example.trunk.tolist()
        prompts = []
        for number, message in enumerate(checked):
            if message["role"] == "assistant":
                prompts.append(renderer.prompt(check_messages(messages)[:number]).rstrip())
        on = np.array(marked["assistant_masks"])
        labelled = np.zeros_like(on)
        for start, stop in example.labels:
            labelled[start:stop] = 1
        assert (labelled <= on).all()
        others = np.flatnonzero(on > labelled)
        for run in np.split(others, np.flatnonzero(np.diff(others) > 1) + 1):
            rest = tokenizer.decode(example.trunk[run].tolist()).strip()
            assert any(rest in prompt[-80:] for prompt in prompts), rest
        compared += 1
    assert compared >= 6


# Views


@pytest.mark.parametrize("name", ["qwen2_5", "llama3_1", "gptoss", "mistral_v3", "hermes"])
def test_views_are_of_the_question_and_the_answer_after_the_last_result(name):
    example, tokenizer, report = encoded(name, TWO_CALLS, "llm_jepa")
    (view,) = views_of(example)
    assert tokenizer.decode(example.trunk[: view.end + 1].tolist()).endswith(QUESTION)
    assert tokenizer.decode(example.trunk[view.start : view.stop].tolist()).strip() == ANSWER
    example, tokenizer, report = encoded(name, CHATS["two turns"], "step_jepa")
    (view,) = views_of(example)
    source, target = example.trunk[: view.end + 1].tolist(), example.trunk[view.start : view.stop].tolist()
    assert tokenizer.decode(source).endswith("It is 22 degrees.\n\n") and tokenizer.decode(target) == "So it is warm."
    assert report.steps.rows == 1
    # A row's own steps are those of its last answer.
    own = {"steps": ["It is 22", "degrees. So", "it is warm."]}
    messages = [*TWO_CALLS[:-1], answer("It is 22 degrees. So it is warm.")]
    example, _, report = encoded(name, messages, "step_jepa", own, step_splitter="auto", step_pairs="all")
    assert report.steps.own == 1 and len(example.pairs) == 2


# Templates that refuse


@pytest.mark.parametrize(
    ("name", "messages", "words"),
    [
        (CHATML, ONE, "does not write tool call 1 of message 2; give one that does with --chat_template"),
        ("gemma", ONE, "the chat template refuses this chat: Conversation roles must alternate"),
        ("llama3_1", CHATS["in parallel"], "This model only supports single tool-calls at once!"),
        ("gptoss", CHATS["in parallel"], "the chat template does not write tool call 2 of message 2"),
        ("gemma4", CHATS["text and call"], "its text after the results of its calls; leave"),
        ("gptoss", [ONE[0], *ONE[2:]], "there was no previous assistant message with a tool call"),
    ],
)
def test_templates_that_do_not_know_tools_refuse_the_row(name, messages, words):
    with pytest.raises(DataError) as caught:
        encoded(name, messages)
    assert "template refused" in str(caught.value) and words in str(caught.value)


def test_a_template_of_its_own_for_tools():
    tokenizer = tool_tokenizer("hermes")
    tokenizer.chat_template = {"default": CHATML, "tool_use": tokenizer.chat_template}
    rows = [row(ONE), {"messages": [ONE[0], ONE[3]]}]
    store, report = encode_dataset(rows, tokenizer, ChatRenderer(tokenizer), settings_of("regular", max_length=8192))
    assert texts(tokenizer, store[0], store[0].labels) == [LABELS["hermes"][0], LABELS["hermes"][2]]
    assert report.unread == {}
