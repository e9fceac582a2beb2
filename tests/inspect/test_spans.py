"""Names of the trunk's tokens: they agree with what the data package encodes."""

from stepjepa.data.encode import CheckedChat, encode_dataset, make_encoder
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import make_splitter
from stepjepa.data.template import ChatRenderer
from stepjepa.inspect.layout import token_text
from stepjepa.inspect.view import trunk_spans
from stepjepa.modeling.load import train_tokenizer
from support.encoding import settings_of, views_of
from support.records import row_record
from support.tool_rows import CHATS, QUESTION, TWO_CALLS, row, tool_tokenizer


def encoded(tokenizer, row, **options):
    """The example of a row, and the named spans of its trunk."""
    renderer, settings = ChatRenderer(tokenizer), settings_of(**options)
    store, _ = encode_dataset([row], tokenizer, renderer, settings)
    encoder = make_encoder(RowSource([row]), tokenizer, renderer, settings)
    return store[0], trunk_spans(encoder, CheckedChat.of(row, settings, settings.needs_steps, renderer))


def test_spans_agree_with_the_pairs_of_the_data_package():
    tokenizer = train_tokenizer(["First we add 2 and 3.\n\nThen we double it.\n\nSo 10. What is it?"], 320)
    messages = [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "What is it?\n\nSo?"},
        {"role": "assistant", "content": "First we add 2 and 3.\n\nThen we double it \U0001f600.\r\n\r\nSo 10."},
    ]
    options = {"splitter": make_splitter("lines"), "step_pairs": "all", "predictors": 2}
    example, spans = encoded(tokenizer, {"messages": messages}, **options)
    assert [span.name for span in spans] == ["system", "user", "step 1", "step 2", "step 3"]
    steps = spans[2:]
    assert [view.end + 1 for view in views_of(example)] == [step.stop for step in steps[:-1]]
    assert [(view.start, view.stop) for view in views_of(example)] == [step[1:] for step in steps[1:]]
    record = row_record(example, 2, token_text(tokenizer), vocabulary=len(tokenizer), spans=spans)
    start, stop = spans[1][1:]
    assert "".join(record.texts[start:stop]) == messages[1]["content"]
    start, stop = record.pairs[0].views.original
    assert record.texts[start:stop] == record.texts[slice(*record.pairs[0].views.copy)]
    assert record.texts[record.pairs[1].arrow[1]] == "."


def named(name, messages):
    """Name -> text, in order, of what has a name among the tokens of a row with tools."""
    tokenizer = tool_tokenizer(name)
    example, spans = encoded(tokenizer, row(messages), max_length=4096)
    return [(one.name, tokenizer.decode(example.trunk[one.start : one.stop].tolist())) for one in spans]


def test_spans_of_calls_and_results():
    assert named("qwen2_5", TWO_CALLS) == [
        ("user", QUESTION),
        ("tool call", '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'),
        ("tool result", '{"degrees": 22}'),
        ("tool call", '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'),
        ("tool result", 'said "cloudy"\n'),
        ("step 1", "It is 22 degrees.\n\n"),
        ("step 2", "So it is warm."),
    ]
    found = named("qwen2_5", CHATS["text and call"])
    assert [name for name, _ in found] == ["user", "assistant", "tool call", "tool result", "step 1", "step 2"]
    assert found[1] == ("assistant", "Let me look")  # the full stop is in one token with the line break
    turn = ["user", "tool call", "tool result"]
    assert [name for name, _ in named("llama3_1", CHATS["two turns"])] == [
        *(*turn, "answer 1, step 1", "answer 1, step 2"),
        *(*turn, "answer 2, step 1"),
    ]


def test_texts_of_tokens(mistral_tokenizer):
    tokenizer = train_tokenizer(["First we add 2 and 3.\n\nThen we double it."], 300)
    text = token_text(tokenizer)
    assert [text(index) for index in tokenizer(" 3.", add_special_tokens=False)["input_ids"]] == [" ", "3", "."]
    assert text(tokenizer.eos_token_id) == "<|end|>"
    assert text(10**6) == f"<id {10**6}>"
    numbers = mistral_tokenizer("two words", add_special_tokens=False)["input_ids"]
    assert "".join(map(token_text(mistral_tokenizer), numbers)) == " two words"
