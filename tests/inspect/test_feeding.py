"""What a model will see of a data set, counted by hand with a tokenizer whose tokens are words."""

import json

import numpy as np
import pytest

from stepjepa.data.chat import ChatRenderer
from stepjepa.data.encode import encode_dataset
from stepjepa.data.options import EncodeOptions
from stepjepa.data.steps import make_splitter
from stepjepa.errors import DataError
from stepjepa.forest.collate import ForestCollator
from stepjepa.inspect.feeding_words import feeding_lines
from stepjepa.inspect.padding import Form, measure_padding, segment_tokens
from support.feeding import ROWS, feed, warned, words


def test_counts_by_hand():
    report, sampled = feed(ROWS)
    data, cut = report.data, report.truncation
    assert (data.rows_read, data.rows_kept, data.examples, data.pairs) == (3, 3, 3, 2)
    assert data.examples_without_pairs == {"fewer_than_two_steps": 1}
    assert (data.tokens, data.labelled_tokens) == (34, 7 + 3 + 4)
    assert data.token_length == {"min": 8, "p50": 13, "p90": 13, "p99": 13, "max": 13}
    assert (cut.answers_cut, cut.rows_without_room, cut.tokens, cut.tokens_lost) == (0, 0, 34, 0)
    assert cut.holds == {"100": 13, "99": 13, "95": 13}
    # Steps one and two of three, nothing of the answer of one step, both steps of two: 2 + 1 of 6, 0 of 2, 3 of 3.
    assert (report.coverage.answer_tokens, report.coverage.in_views) == (11, 6)
    assert (report.sampled, report.sampled_all) == (3, True)
    assert report.one_token_targets == 1
    assert report.unknown_tokens == 0
    assert (report.end_of_turn, report.end_is, report.end_labelled) == ("<end>", ("EOS",), True)
    kinds = segment_tokens(sampled, [example for example, _ in sampled], Form(2), report.vocabulary)
    assert {kind: tokens for kind, tokens in kinds.items() if tokens} == {
        "template": 5 + 5 + 7,
        "system": 2,
        "user": 2 + 1 + 1,
        "assistant": 6 + 2 + 3,
        "predictors": 4,
        "target copies": 1 + 2,
    }


@pytest.mark.parametrize(
    ("options", "covered"),
    [
        ({"step_pairs": "all"}, 9),  # of row 0 all
        ({"step_pairs": "all", "horizons": (2,)}, 5),  # row 0: one two -> four five six
        ({"objective": "llm_jepa"}, 11),
        ({"objective": "llm_jepa", "views": "standalone"}, 11),
        ({"objective": "llm_jepa", "last_token": -1}, 11),  # the end of turn is no content
        ({"objective": "split"}, 11),
        ({"objective": "semantic_tube"}, 11),
        ({"objective": "regular"}, 0),
        ({"objective": "llm_jepa", "max_length": 10}, 2),  # only row 1 keeps its answer; the others keep 4 and 1 tokens
    ],
)
def test_coverage(options, covered):
    report, _ = feed(ROWS, **options)
    assert report.coverage.in_views == covered
    assert report.coverage.answer_tokens == (7 if "max_length" in options else 11)


def test_steps_that_a_column_holds():
    rows = [
        {"question": "how", "answer": "one two three", "steps": ["one", "two three"]},
        {"question": "how", "steps": ["one", "two"]},
    ]
    report, _ = feed(rows, steps_column="steps")
    assert report.data.pairs == 2
    assert (report.coverage.answer_tokens, report.coverage.in_views) == (5, 5)
    report, _ = feed(rows, steps_column="steps", horizons=(2,))
    assert report.coverage.in_views == 0


def test_truncation():
    report, _ = feed(ROWS, max_length=10)
    cut = report.truncation
    assert (cut.answers_cut, cut.rows_without_room, cut.tokens, cut.tokens_lost) == (2, 0, 34, 3 + 3)
    assert cut.holds == {"100": 13, "99": 13, "95": 13}
    assert report.data.pairs_dropped == {"pair_truncated": 1}
    caution = warned(report)["truncated"]
    assert (caution.count, caution.total) == (2, 3)
    assert "raise --max_length to 13, or take them out" in caution.advice
    report, _ = feed(ROWS, max_length=8)  # the third row's answer begins at token 9
    cut = report.truncation
    assert (cut.answers_cut, cut.rows_without_room, cut.tokens, cut.tokens_lost) == (1, 1, 34, 5 + 13)
    assert report.data.first_skipped["no_room_for_answer"].startswith("list row 2: the prompt has 9 tokens")
    assert report.skipped_texts["no_room_for_answer"].startswith('{"messages": [{"role": "system"')
    assert "truncated" not in warned(feed(ROWS, max_length=13)[0])


def test_the_length_that_holds_a_share_of_the_chats():
    rows = [{"question": "how", "answer": "one " * count + "two"} for count in range(100)]  # 7 to 106 tokens
    report, _ = feed(rows, max_length=50)
    assert report.truncation.holds == {"100": 106, "99": 105, "95": 101}
    assert report.truncation.answers_cut == 56
    assert report.truncation.tokens_lost == sum(range(1, 57))
    assert "to 106, or to 105 for 99 % of the rows" in warned(report)["truncated"].advice


def test_rows_over_several_chunks(monkeypatch):
    monkeypatch.setattr("stepjepa.inspect.feeding.CHUNK_ROWS", 2)
    whole, sampled = feed([*ROWS, 3, *ROWS], max_length=8)
    assert (whole.data.rows_read, whole.data.rows_kept) == (7, 4)
    assert whole.data.rows_skipped == {"no_room_for_answer": 2, "not_an_object": 1}
    assert whole.truncation.tokens == 68
    assert [len(example.input_ids) for example, _ in sampled] == [8, 8, 8, 8]
    assert whole.skipped_texts["not_an_object"] == "3"


def test_a_sample():
    rows = ROWS * 10
    report, sampled = feed(rows, sample_rows=4)
    assert (len(sampled), report.sampled, report.sampled_all) == (4, 4, False)
    assert report.data.pairs == 20
    again, same = feed(rows, sample_rows=4)
    assert [example.input_ids.tolist() for example, _ in same] == [example.input_ids.tolist() for example, _ in sampled]
    assert "(4 examples drawn at random)" in "\n".join(feeding_lines(again))


def test_readouts():
    report, _ = feed(ROWS, step_pairs="all")
    first, second, third = report.readouts
    assert first.place == "list row 0" and third.place == "list row 2"
    # The words stand without their spaces, which are no tokens here.
    assert first.source.endswith("<assistant>onetwo")
    assert (first.source_token, first.target, first.target_token) == ("<|predictor_2|>", "three", "three")
    assert (second.target, second.target_token) == ("fourfivesix", "six")
    descending, _ = feed(ROWS, "llm_jepa", form=Form(2, descending=True))
    assert descending.readouts[0].source_token == "<|predictor_1|>"
    same, _ = feed(ROWS, "llm_jepa", form=Form(2, same=True))
    assert same.readouts[0].source_token == "<|predictor_1|>"
    bare, _ = feed(ROWS, "llm_jepa", form=Form(0))
    assert bare.readouts[0].source_token == "many"


def test_plain_text():
    rows = [
        {"text": "one two three four"},
        {"text": ""},
        {"input_ids": [7, 8, 9]},
        {"question": "how", "answer": "one"},
    ]
    report, sampled = feed(rows, "split", form=Form(1), max_length=3)
    # one two three | four <end>; 7 8 9; the chat's first three tokens hold no answer.
    assert (report.data.rows_read, report.data.rows_kept, report.data.examples) == (4, 2, 3)
    assert report.plain_text and report.truncation is None and report.coverage is None
    assert report.data.rows_skipped == {"nothing_to_learn": 1, "no_room_for_answer": 1}
    kinds = segment_tokens(sampled, [example for example, _ in sampled], Form(1), report.vocabulary)
    assert (kinds["text"], kinds["template"], kinds["predictors"]) == (8, 0, 0)
    lines = feeding_lines(report)
    assert any("kept as 3 examples" in line for line in lines)
    assert any("cut into blocks" in line for line in lines)
    with pytest.raises(DataError, match="needs chats"):
        feed(rows, "step_jepa")


def test_nothing_to_train_on():
    with pytest.raises(DataError, match="no row can be trained on: 1 read"):
        feed(ROWS[:1], max_length=3)


def test_the_record_and_the_words():
    report, sampled = feed([*ROWS, {"question": "how \x1b[31m", "answer": "one"}, 3])
    drawn = [example for example, _ in sampled]
    report.segments = segment_tokens(sampled, drawn, Form(2), report.vocabulary)
    report.padding = measure_padding(drawn, ForestCollator((17, 18), 0), 8, 1024)
    record = json.loads(json.dumps(report.to_dict()))
    assert record["coverage"] == {"answer_tokens": 12, "in_views": 6}
    assert record["data"]["rows_skipped"] == {"not_an_object": 1}
    lines = feeding_lines(report)
    assert all(character.isprintable() for line in lines for character in line)
    assert "  Rows: 5 read, 4 kept, 1 skipped" in lines
    assert "    skipped 1: the row is no object with columns (as above)" in feeding_lines(report, {"not_an_object"})
    assert "      the row begins: 3" in lines
    where = "a step that is the source or the target of a pair (all 4 examples)"
    assert f"  Coverage: 50.0 % of the answers' 12 tokens lie in {where}" in lines
    assert "    no pair in 2: the answer has fewer than two steps; plain language modelling" in lines
    assert "  Truncation: none at max_length 1,024; the longest has 13, 99 % fit into 13, 95 % into 13" in lines


def test_examples_are_those_of_training():
    tokenizer = words()
    settings = EncodeOptions("step_jepa", make_splitter("separator"), predictors=2)
    store, data = encode_dataset(ROWS * 3, tokenizer, ChatRenderer(tokenizer), settings)
    report, sampled = feed(ROWS * 3)
    assert all(
        np.array_equal(mine.example.input_ids, theirs.input_ids) for mine, theirs in zip(sampled, store, strict=True)
    )
    assert {**report.data.to_dict(), "fingerprint": ""} == {**data.to_dict(), "fingerprint": ""}
