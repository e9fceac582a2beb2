"""Views rendered alone: their tokens, where predictors stand, and where they are read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from stepjepa.data.encode import TokenChat
from stepjepa.data.template import ChatRenderer
from stepjepa.data.types import PairsFound
from stepjepa.objectives.base import objective_of
from stepjepa.training.options import JEPAOptions
from support.templates import FORMATS
from support.tokenizers import byte_bpe_tokenizer, fresh, llama3_tokenizer, mistral_sentencepiece_tokenizer

USER = {"role": "user", "content": "What is 12 + 5?"}
ANSWER = {"role": "assistant", "content": "It is 17."}


class Sides(NamedTuple):
    """The tokens of both views, predictors as ``-1``, ``-2``, .. in the run's order, and where they are read."""

    source: list[int]
    source_read: int
    target: list[int]
    target_read: int


def found(tokenizer, chat, **options) -> PairsFound:
    values = {"predictors": 0, "views": "standalone", **options}
    nothing = np.zeros(0, np.int32)
    objective = objective_of(JEPAOptions(objective="llm_jepa", **values))
    return objective.pairs_of(TokenChat(nothing, nothing, [], chat, tokenizer, ChatRenderer(tokenizer)))


def sides(tokenizer, chat, **options) -> list[Sides]:
    result = found(tokenizer, chat, **options)
    marks = [-1 - number for number in range(options.get("predictors", 0))]

    def side(read):
        (term,) = read.terms
        segment = result.segments[term.segment - 1]
        assert segment.attach == -1 and segment.position == 0 and segment.origin is None
        return segment.tokens(marks).tolist(), term.token

    return [Sides(*side(pair.source), *side(pair.target)) for pair in result.pairs]


def shown(tokenizer, ids) -> str:
    """Tokens as text, a predictor as [p1], [p2], .. in the order of the run."""
    return "".join(f"[p{-i}]" if i < 0 else tokenizer.decode([i]) for i in ids)


@pytest.fixture
def llama3():
    return llama3_tokenizer("llama3_undated")


def test_llama3_source_and_target(llama3):
    (pair,) = sides(llama3, [USER, ANSWER], predictors=2)
    head = "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
    assert shown(llama3, pair.source) == head + "What is 12 + 5?[p1][p2]<|eot_id|>"
    assert pair.source[pair.source_read] == -2
    assert shown(llama3, pair.target) == head.replace("user", "assistant") + "It is 17.<|eot_id|>"
    assert llama3.decode([pair.target[pair.target_read]]) == "."
    assert pair.target == list(llama3.apply_chat_template([ANSWER], tokenize=True, return_dict=False))
    (front,) = sides(llama3, [USER, ANSWER], predictors=2, front_pred=True)
    assert shown(llama3, front.source) == head + "[p1][p2]What is 12 + 5?<|eot_id|>"
    assert llama3.decode([front.source[front.source_read]]) == "?"


@pytest.mark.parametrize("front", [False, True])
def test_predictors_divide_the_text_as_special_tokens_do(front):
    """As in the published code; this tokenizer puts a space mark after every special token."""
    tokenizer = mistral_sentencepiece_tokenizer("v1")
    (pair,) = sides(tokenizer, [{**USER, "content": "12 + 5?"}, ANSWER], predictors=1, front_pred=front)
    special = fresh(tokenizer)
    special.add_tokens(["<p>"], special_tokens=True)
    content = "<p>12 + 5?" if front else "12 + 5?<p>"
    ids = special.apply_chat_template([{**USER, "content": content}], tokenize=True, return_dict=False)
    assert pair.source == [-1 if token == len(tokenizer) else token for token in ids]


def test_offsets_count_from_the_end_of_the_view(llama3):
    tokens = {-1: "<|eot_id|>", -2: "[p2]", -3: "[p1]", -4: "?", None: "[p2]"}
    for last_token, token in tokens.items():
        (pair,) = sides(llama3, [USER, ANSWER], predictors=2, last_token=last_token)
        assert shown(llama3, [pair.source[pair.source_read]]) == token


def test_trimmed_content_is_read_at_its_last_token(llama3):
    spaced = {**USER, "content": "  What is it?  "}
    (plain,) = sides(llama3, [spaced, ANSWER])
    assert llama3.decode([plain.source[-2]]) == "?" and plain.source_read == len(plain.source) - 2
    (front,) = sides(llama3, [spaced, ANSWER], predictors=1, front_pred=True)
    assert llama3.decode([front.source[front.source_read]]) == "?"


def test_every_turn_has_a_pair(bpe_tokenizer):
    chat = [USER, ANSWER, {"role": "user", "content": "And 1 more?"}, {"role": "assistant", "content": "18."}]
    first, second = sides(bpe_tokenizer, chat, predictors=1)
    assert first.source[first.source_read] == second.source[second.source_read] == -1
    assert [first] == sides(bpe_tokenizer, [USER, ANSWER], predictors=1)


def test_reverse_swaps_the_sides(bpe_tokenizer):
    (pair,) = sides(bpe_tokenizer, [USER, ANSWER], predictors=1, reverse_pred=True)
    source = shown(bpe_tokenizer, pair.source)
    assert "It is 17." in source and "12 + 5" not in source
    assert "12 + 5" in shown(bpe_tokenizer, pair.target)


@pytest.mark.parametrize("name", list(FORMATS))
@pytest.mark.parametrize("count", [0, 2])
def test_every_template_gives_both_views(name, count):
    tokenizer = byte_bpe_tokenizer(template=name)
    (pair,) = sides(tokenizer, [USER, ANSWER], predictors=count)
    assert sum(token < 0 for token in pair.source) == count and min(pair.target) >= 0
    assert "What is 12 + 5?" in tokenizer.decode([token for token in pair.source if token >= 0])
    assert "It is 17." in tokenizer.decode(pair.target)
    read = pair.source[pair.source_read]
    assert read == -count if count else tokenizer.decode([read]).endswith("?")
    assert tokenizer.decode([pair.target[pair.target_read]]).endswith(".")


def test_what_makes_no_pair(bpe_tokenizer):
    def reason(chat, **options):
        result = found(bpe_tokenizer, chat, **options)
        assert not result.pairs and not result.segments
        return result.reason

    assert reason([ANSWER]) == "no_user_message"
    assert reason([{**USER, "content": ""}, ANSWER]) == "empty_view"
    assert reason([{**USER, "content": ""}, ANSWER], predictors=1) == "empty_view"
    assert reason([USER, {**ANSWER, "content": " "}]) == "empty_view"
    assert reason([USER, ANSWER], last_token=-400) == "view_shorter_than_last_token"
