"""Rows with calls of tools and their results."""

import json

from .templates import TOOL_TEMPLATES
from .trl_templates import template, tokenizer_with

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "The city"}},
                "required": ["city"],
            },
        },
    }
]
FIRST, SECOND = "abcdefgh1", "abcdefgh2"
QUESTION, ANSWER = "Is it warm in Oslo?", "It is 22 degrees.\n\nSo it is warm."


def user(text):
    return {"role": "user", "content": text}


def answer(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(city="Oslo", identity=FIRST, **more):
    """A message that calls the tool, its arguments a text of JSON as OpenAI has them."""
    function = {"name": "weather", "arguments": json.dumps({"city": city})}
    calls = [{"id": identity, "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls, **more}


def result(text='{"degrees": 22}', identity=FIRST):
    return {"role": "tool", "name": "weather", "tool_call_id": identity, "content": text}


ONE = [user(QUESTION), call(), result(), answer(ANSWER)]
TWO_CALLS = [*ONE[:3], call("Rome", SECOND), result('said "cloudy"\n', SECOND), answer(ANSWER)]
PARALLEL = [
    user(QUESTION),
    {**call(), "tool_calls": [*call()["tool_calls"], *call("Rome", SECOND)["tool_calls"]]},
    result(),
    result("cloudy", SECOND),
    answer(ANSWER),
]
CHATS = {
    "one call": ONE,
    "system": [{"role": "system", "content": "Be brief."}, *ONE],
    "call alone": ONE[:2],
    "two calls": TWO_CALLS,
    "two turns": [*ONE, user("And in Rome?"), call("Rome", SECOND), result("cloudy", SECOND), answer("No.")],
    "in parallel": PARALLEL,
    "thinking": [
        user(QUESTION),
        call(reasoning_content="I must look."),
        result(),
        call("Rome", SECOND, reasoning_content="And Rome."),
        result("cloudy", SECOND),
        answer(ANSWER, reasoning_content="I know now."),
        user("Sure?"),
        answer("Yes."),
    ],
    "text and call": [user(QUESTION), call(content="Let me look."), result(), answer(ANSWER)],
}


def row(messages, **more):
    return {"messages": messages, "tools": TOOLS, **more}


def tool_tokenizer(name):
    """A small tokenizer with a template that knows tools: of `TOOL_TEMPLATES`, or a real one of TRL's."""
    return tokenizer_with(TOOL_TEMPLATES.get(name) or template(name))
