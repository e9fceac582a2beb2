"""Names of the trunk's tokens: they agree with what the data package encodes, in every template."""

import pytest

from stepjepa.data.encode import CheckedChat, encode_dataset, make_encoder
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import make_splitter
from stepjepa.data.template import ChatRenderer
from stepjepa.inspect.layout import token_text, trunk_names
from stepjepa.inspect.view import trunk_spans
from stepjepa.modeling.load import train_tokenizer
from support.encoding import settings_of, views_of
from support.records import row_record
from support.templates import FORMATS
from support.tokenizers import byte_bpe_tokenizer, with_template


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["First we add 2 and 3.\n\nThen we double it.\n\nSo 10. What is it?"], 320)


def encoded(tokenizer, messages, splitter):
    renderer = ChatRenderer(tokenizer)
    options = settings_of("step_jepa", splitter, step_pairs="all", predictors=2)
    rows = [{"messages": messages}]
    store, _ = encode_dataset(rows, tokenizer, renderer, options)
    encoder = make_encoder(RowSource(rows), tokenizer, renderer, options)
    return store[0], trunk_spans(encoder, CheckedChat.of(rows[0], options, options.needs_steps, renderer))


def test_spans_agree_with_the_pairs_of_the_data_package(tokenizer):
    messages = [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "What is it?\n\nSo?"},
        {"role": "assistant", "content": "First we add 2 and 3.\n\nThen we double it \U0001f600.\r\n\r\nSo 10."},
    ]
    example, spans = encoded(tokenizer, messages, make_splitter("lines"))
    assert [span.name for span in spans] == ["system", "user", "step 1", "step 2", "step 3"]
    steps = spans[2:]
    assert [view.end + 1 for view in views_of(example)] == [step.stop for step in steps[:-1]]
    assert [(view.start, view.stop) for view in views_of(example)] == [step[1:] for step in steps[1:]]
    row = row_record(example, 2, token_text(tokenizer), vocabulary=len(tokenizer), spans=spans)
    start, stop = spans[1][1:]
    assert "".join(row.texts[start:stop]) == messages[1]["content"]
    start, stop = row.pairs[0].views.original
    assert row.texts[start:stop] == row.texts[slice(*row.pairs[0].views.copy)]
    assert row.texts[row.pairs[1].arrow[1]] == "."


def test_several_answers_have_their_own_steps(tokenizer):
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b\n\nc"},
        {"role": "user", "content": "d"},
        {"role": "assistant", "content": "e"},
    ]
    _, spans = encoded(tokenizer, messages, make_splitter("separator"))
    names = [span.name for span in spans]
    assert names == ["user", "answer 1, step 1", "answer 1, step 2", "user", "answer 2, step 1"]


CHAT = [
    {"role": "user", "content": "What is it?"},
    {"role": "assistant", "content": "First we add 2 and 3."},
    {"role": "user", "content": "So?"},
    {"role": "assistant", "content": "So 10."},
]


def named(tokenizer, labels="assistant", **options):
    """Name -> text of the trunk's tokens of that name, the names, and the example."""
    renderer = ChatRenderer(tokenizer)
    settings = settings_of("llm_jepa", labels=labels, **options)
    rows = [{"messages": CHAT}]
    store, _ = encode_dataset(rows, tokenizer, renderer, settings)
    encoder = make_encoder(RowSource(rows), tokenizer, renderer, settings)
    spans = trunk_spans(encoder, CheckedChat.of(rows[0], settings, settings.needs_steps, renderer))
    names, text = trunk_names(store[0], spans), token_text(tokenizer)
    found: dict[str, str] = {}
    for name, index in zip(names, store[0].trunk.tolist(), strict=True):
        found[name] = found.get(name, "") + text(index)
    return found, names, store[0]


def labelled(example):
    return [any(start <= at < stop for start, stop in example.labels) for at in range(len(example.trunk))]


def assert_labels_are_named(names, example):
    """Answers and ends of turns are labelled, and so is what the template writes in front of an answer."""
    own = ("trunk: answer 1", "trunk: answer 2", "trunk: end of turn")
    pairs = list(zip(names, labelled(example), strict=True))
    assert all(is_labelled for name, is_labelled in pairs if name in own)
    for at, (name, is_labelled) in enumerate(pairs):
        if is_labelled and name not in own:
            assert name == "trunk: template" and (pairs[at + 1][1] or pairs[at + 1][0] in own)


@pytest.mark.parametrize("template", FORMATS)
def test_names_in_every_template(template):
    tokenizer = byte_bpe_tokenizer(template=template)
    found, names, example = named(tokenizer)
    assert found["trunk: answer 1"].lstrip() == CHAT[1]["content"]
    assert found["trunk: answer 2"].lstrip() == CHAT[3]["content"]
    assert_labels_are_named(names, example)
    end = FORMATS[template].end_of_turn
    assert found.get("trunk: end of turn", "").count(end or "\n") == (2 if end else 0)


def test_names_where_answers_are_kept_apart_from_the_template():
    # A full stop and the line break after it are one token, and nothing but that ends an answer here.
    tokenizer = with_template(byte_bpe_tokenizer(), "plain_no_eot")
    tokenizer.add_tokens([".\n"])
    found, names, example = named(tokenizer)
    assert found["trunk: answer 1"].lstrip() == CHAT[1]["content"]
    assert found["trunk: answer 2"].lstrip() == CHAT[3]["content"]
    assert found["trunk: end of turn"] == tokenizer.eos_token
    assert_labels_are_named(names, example)


@pytest.mark.parametrize("labels", ["all", "reference"])
def test_labels_of_another_mode_name_no_end_of_turn(labels):
    found, names, _ = named(byte_bpe_tokenizer(), labels)
    assert "trunk: end of turn" not in found
    assert found["trunk: answer 2"] == "So 10."


def test_names_of_a_chat_that_is_cut():
    whole = named(byte_bpe_tokenizer())[1]
    for length in (len(whole) - 1, whole.index("trunk: answer 1") + 2):
        assert named(byte_bpe_tokenizer(), max_length=length)[1] == whole[:length]
