"""Whole data sets: examples, pairs, truncation, strictness, and a report in which every row is counted once."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from stepjepa.data.encode import encode_dataset
from stepjepa.data.steps import StepRules, make_splitter
from stepjepa.data.template import ChatRenderer
from stepjepa.errors import ConfigError, DataError
from support.encoding import settings_of, views_of

SPLITTER = make_splitter("separator")


def chat(answer, question="Q?"):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def encode(tokenizer, chats, objective="regular", splitter=SPLITTER, **options):
    rows = [{"messages": row} if isinstance(row, list) else row for row in chats]
    return encode_dataset(rows, tokenizer, ChatRenderer(tokenizer), settings_of(objective, splitter, **options))


def test_truncation(bpe_tokenizer):
    messages = chat("a.\n\nb.\n\nc.")
    whole, _ = encode(bpe_tokenizer, [messages], "step_jepa", step_pairs="all")
    first, second = views_of(whole[0])
    ((start, stop),) = whole[0].labels
    assert len(whole[0].trunk) == stop + 1  # the line break behind the end of turn

    def at(limit, **options):
        store, report = encode(bpe_tokenizer, [messages], "step_jepa", step_pairs="all", max_length=limit, **options)
        return store[0], report

    example, report = at(stop)  # only the template's line break is lost, no part of the answer
    assert report.answers_truncated == 0 and len(example.trunk) == stop
    at(stop, strict_data=True)
    example, report = at(stop - 1)
    assert report.answers_truncated == 1 and example.labels == ((start, stop - 1),)
    assert views_of(example) == [first, second] and report.pairs_dropped == {}
    example, report = at(second.stop - 1)
    assert views_of(example) == [first] and report.pairs_dropped == {"pair_truncated": 1}
    assert report.pairs == 1 and report.examples_without_pairs == {}
    example, report = at(first.stop - 1)
    assert example.pairs == () and report.pairs_dropped == {"pair_truncated": 2}
    assert report.examples_without_pairs == {"pair_truncated": 1} and report.rows_kept == 1
    example, report = at(start + 1)
    assert example.labels == ((start, start + 1),) and report.labelled_tokens == 1
    with pytest.raises(DataError, match=f"the prompt has {start} tokens and max_length is {start}; raise --max"):
        at(start)
    with pytest.raises(DataError, match="list row 0: the chat has 22 tokens, and the answer would be cut; raise"):
        at(stop - 1, strict_data=True)
    store, report = encode(bpe_tokenizer, [messages, chat("a", "")], "regular", max_length=start)
    assert report.rows_kept == 1 and report.rows_skipped == {"no_room_for_answer": 1}
    # A later answer that is lost as a whole is an answer that was cut.
    store, report = encode(bpe_tokenizer, [messages + chat("d.")], "regular", max_length=stop + 2)
    assert report.answers_truncated == 1 and store[0].labels == ((start, stop),)


def test_positions(bpe_tokenizer):
    messages = chat("a.\n\nb.\n\nc.")
    (pair,) = views_of(encode(bpe_tokenizer, [messages], "step_jepa")[0][0])
    for predictors in (0, 3):
        need = pair.end + 1 + predictors + pair.stop - pair.start
        for positions, kept in ((need, 1), (need - 1, 0)):
            limits = {"predictors": predictors, "max_positions": positions}
            store, report = encode(bpe_tokenizer, [messages], "step_jepa", **limits)
            assert len(store[0].pairs) == kept == report.pairs
            assert report.examples_without_pairs == ({} if kept else {"beyond_positions": 1})
            assert report.pairs_dropped == ({} if kept else {"beyond_positions": 1})


ROWS = [
    {"messages": chat("a.\n\nb.")},
    {"text": "x"},
    {"messages": chat("c.")},
    "no object",
    {"messages": [{"role": "narrator", "content": "x"}]},
    {"messages": chat("d", 7)},
    {"messages": chat("d")[:1]},
    {"messages": chat("a.\n\nb.", "long " * 60)},
    {"messages": chat("\ud800")},
    {"text": "y"},
    {"messages": []},
    {"question": "Q?", "answer": "e.\n\nf.\n\ng."},
]


def test_every_row_is_counted_once(bpe_tokenizer):
    store, report = encode(bpe_tokenizer, ROWS, "step_jepa", max_length=60)
    assert (report.rows_read, report.rows_kept, len(store)) == (12, 3, 3)
    once = "not_an_object unknown_role content_not_text no_assistant_message no_room_for_answer broken_text no_messages"
    assert report.rows_skipped == {"no_known_columns": 2, **dict.fromkeys(once.split(), 1)}
    assert sum(report.rows_skipped.values()) + report.rows_kept == report.rows_read
    assert report.first_skipped["no_known_columns"].startswith("list row 1: columns found: text; expected")
    assert report.first_skipped["no_room_for_answer"].startswith("list row 7: the prompt has ")
    assert report.examples_without_pairs == {"fewer_than_two_steps": 1} and report.pairs == 2
    assert report.tokens == sum(len(e.trunk) for e in store) == int(store.lengths.sum())
    assert report.labelled_tokens == sum(b - a for e in store for a, b in e.labels)
    assert report.token_length["max"] == max(len(e.trunk) for e in store)
    record = json.loads(json.dumps(report.to_dict()))
    assert record["rows_skipped"]["no_known_columns"] == 2 and record["pairs"] == 2
    lines = report.lines()
    assert lines[0] == "list: 12 rows read, 3 kept, 9 skipped, 2 pairs"
    assert "1 without a pair (plain language modelling): the answer has fewer than two steps" in lines
    assert all("\n" not in line for line in lines)


def test_processes_change_nothing(bpe_tokenizer, monkeypatch):
    monkeypatch.setattr("stepjepa.data.encode.CHUNK_ROWS", 4)
    rows = [*({"messages": chat(f"{i}.\n\nb.")} for i in range(13)), {"no": 1}]
    options, renderer = settings_of(), ChatRenderer(bpe_tokenizer)
    one, two = (encode_dataset(iter(rows), bpe_tokenizer, renderer, options, processes=count) for count in (1, 2))
    assert one[1] == two[1] and one[1].rows_kept == 13 and one[1].rows_skipped == {"no_known_columns": 1}
    assert all(np.array_equal(array, vars(two[0])[name]) for name, array in vars(one[0]).items())


def test_a_slow_tokenizer_is_refused(bpe_tokenizer):
    slow, renderer = SimpleNamespace(is_fast=False), ChatRenderer(bpe_tokenizer)
    with pytest.raises(ConfigError, match="is slow and gives no character offsets"):
        encode_dataset([{"messages": chat("a")}], slow, renderer, settings_of("regular"))


def test_a_steps_column_that_does_not_fit(bpe_tokenizer):
    good = {"question": "a", "answer": "b c", "steps": ["b", "c"]}
    rows = [good, *({**good, "steps": steps} for steps in (["c", "b"], None, "b c"))]
    _, report = encode(bpe_tokenizer, rows, "step_jepa", rules=StepRules(SPLITTER, "steps", True), splitter=None)
    assert report.rows_kept == 1 and report.rows_skipped == {"steps_not_found": 1, "no_steps": 2}
