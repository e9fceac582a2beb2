"""`check` and `inspect` of rows with tools."""

from stepjepa.data.encode import CheckedChat, make_encoder
from stepjepa.data.sources import RowSource
from stepjepa.data.template import ChatRenderer
from stepjepa.inspect.view import trunk_spans
from support.checks import check_format
from support.encoding import settings_of
from support.tool_rows import CHATS, ONE, QUESTION, TWO_CALLS, call, row, tool_tokenizer


def names_of(name, messages):
    """Name -> text, in order, of what has a name among a row's tokens."""
    tokenizer = tool_tokenizer(name)
    renderer, options = ChatRenderer(tokenizer), settings_of("step_jepa", max_length=4096)
    encoder = make_encoder(RowSource([row(messages)]), tokenizer, renderer, options)
    chat = CheckedChat.of(row(messages), options, options.needs_steps, renderer)
    ids, _ = encoder.tokenised(chat)
    return [(one.name, tokenizer.decode(ids[one.start : one.stop].tolist())) for one in trunk_spans(encoder, chat)]


def test_spans_of_calls_and_results():
    assert names_of("qwen2_5", TWO_CALLS) == [
        ("user", QUESTION),
        ("tool call", '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'),
        ("tool result", '{"degrees": 22}'),
        ("tool call", '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'),
        ("tool result", 'said "cloudy"\n'),
        ("step 1", "It is 22 degrees.\n\n"),
        ("step 2", "So it is warm."),
    ]
    named = names_of("qwen2_5", CHATS["text and call"])
    assert [name for name, _ in named] == ["user", "assistant", "tool call", "tool result", "step 1", "step 2"]
    assert named[1] == ("assistant", "Let me look")  # the full stop is in one token with the line break
    names = [name for name, _ in names_of("llama3_1", CHATS["two turns"])]
    turn = ["user", "tool call", "tool result"]
    assert names == [*turn, "answer 1, step 1", "answer 1, step 2", *turn, "answer 2, step 1"]


def test_check_counts_calls_and_results():
    report = check_format([row(TWO_CALLS), row(ONE[:2]), row([ONE[0], call(weight=0)])])
    assert report.role_orders == {
        "user, tool call, tool result, tool call, tool result, assistant": 1,
        "user, tool call": 1,
    }
    assert report.step_counts == {2: 1, 0: 1} and report.rows_skipped == {"switched_off": 1}
    assert report.unread == {} and report.other_columns == {}
    (sample,) = report.samples
    assert list(sample.texts) == ["User", "Tool call", "Tool result", "Assistant"]
    assert '"city": "Oslo"' in sample.texts["Tool call"]
    (alone,) = check_format([row(ONE[:2])]).samples
    assert list(alone.texts) == ["User", "Tool call"] and alone.steps == 0
