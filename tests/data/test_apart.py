"""Views rendered alone: their tokens, where predictors stand, and where they are read."""

from __future__ import annotations

import numpy as np
import pytest

from stepjepa.data.apart import ApartOptions, source_view, standalone_pairs, target_view
from stepjepa.data.chat import ChatRenderer, RowError
from stepjepa.data.views import Pair
from support.templates import FORMATS
from support.tokenizers import byte_bpe_tokenizer, fresh, with_template

USER = {"role": "user", "content": "What is 12 + 5?"}
ANSWER = {"role": "assistant", "content": "It is 17."}


def shown(tokenizer, view):
    """The view's tokens as text, a predictor as [p1], [p2], .. in the order of the run."""
    pieces = [f"[p{-int(i)}]" if i < 0 else tokenizer.decode([int(i)]) for i in view.ids]
    return "".join(pieces)


def test_llama3_source_and_target(llama3_tokenizer):
    tokenizer = with_template(fresh(llama3_tokenizer), "llama3_undated")
    renderer = ChatRenderer(tokenizer)
    source = source_view(tokenizer, renderer, USER, ApartOptions(predictors=2))
    head = "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
    assert shown(tokenizer, source) == head + "What is 12 + 5?[p1][p2]<|eot_id|>"
    assert source.ids[source.readout] == -2
    front = source_view(tokenizer, renderer, USER, ApartOptions(predictors=2, front=True))
    assert shown(tokenizer, front) == head + "[p1][p2]What is 12 + 5?<|eot_id|>"
    assert tokenizer.decode([front.ids[front.readout]]) == "?"
    target = target_view(tokenizer, renderer, ANSWER, None)
    assert shown(tokenizer, target) == head.replace("user", "assistant") + "It is 17.<|eot_id|>"
    assert tokenizer.decode([target.ids[target.readout]]) == "."
    alone = tokenizer.apply_chat_template([ANSWER], tokenize=True, return_dict=False)
    assert target.ids.tolist() == list(alone)


@pytest.mark.parametrize(
    ("last_token", "token"), [(-1, "<|eot_id|>"), (-2, "[p2]"), (-3, "[p1]"), (-4, "?"), (None, "[p2]")]
)
def test_offsets_count_from_the_end_of_the_view(llama3_tokenizer, last_token, token):
    tokenizer = with_template(fresh(llama3_tokenizer), "llama3_undated")
    view = source_view(tokenizer, ChatRenderer(tokenizer), USER, ApartOptions(2, last_token=last_token))
    index = int(view.ids[view.readout])
    assert (f"[p{-index}]" if index < 0 else tokenizer.decode([index])) == token


def test_a_view_shorter_than_the_offset(bpe_tokenizer):
    with pytest.raises(RowError) as caught:
        target_view(bpe_tokenizer, ChatRenderer(bpe_tokenizer), ANSWER, -500)
    assert caught.value.reason == "view_shorter_than_last_token"


def test_trimmed_content_is_read_at_its_last_token(llama3_tokenizer):
    tokenizer = with_template(fresh(llama3_tokenizer), "llama3_undated")
    renderer = ChatRenderer(tokenizer)
    spaced = {**USER, "content": "  What is it?  "}
    assert tokenizer.decode([target_view(tokenizer, renderer, spaced, None).ids[-2]]) == "?"
    front = source_view(tokenizer, renderer, spaced, ApartOptions(1, front=True))
    assert tokenizer.decode([front.ids[front.readout]]) == "?"


def test_pairs_go_on_behind_the_trunk(bpe_tokenizer):
    renderer = ChatRenderer(bpe_tokenizer)
    chat = [USER, ANSWER, {"role": "user", "content": "And 1 more?"}, {"role": "assistant", "content": "18."}]
    pairs, views, reason = standalone_pairs(bpe_tokenizer, renderer, chat, 100, ApartOptions(predictors=1))
    assert reason is None and len(pairs) == 2
    assert pairs[0].source_start == 100 and pairs[1].source_start == pairs[0].target_end
    assert pairs[1].target_end == 100 + len(views)
    for pair in pairs:
        assert pair.source_end + 1 == pair.target_start
        assert views[pair.source_readout - 100] == -1
    single = source_view(bpe_tokenizer, renderer, USER, ApartOptions(predictors=1))
    assert np.array_equal(views[: len(single.ids)], single.ids)


def test_reverse_swaps_the_sides(bpe_tokenizer):
    renderer = ChatRenderer(bpe_tokenizer)
    (pair,), views, _ = standalone_pairs(bpe_tokenizer, renderer, [USER, ANSWER], 0, ApartOptions(1, reverse=True))
    source = bpe_tokenizer.decode([int(i) for i in views[: pair.source_end + 1] if i >= 0])
    assert "It is 17." in source and "12 + 5" not in source
    assert "12 + 5" in bpe_tokenizer.decode(views[pair.target_start :].tolist())


@pytest.mark.parametrize("name", list(FORMATS))
@pytest.mark.parametrize("count", [0, 2])
def test_every_template_gives_both_views(name, count):
    tokenizer = byte_bpe_tokenizer(template=name)
    pairs, views, reason = standalone_pairs(
        tokenizer, ChatRenderer(tokenizer), [USER, ANSWER], 10, ApartOptions(predictors=count)
    )
    assert reason is None, name
    (pair,) = pairs
    source, target = views[: pair.target_start - 10], views[pair.target_start - 10 :]
    assert (source < 0).sum() == count and (target >= 0).all()
    assert "What is 12 + 5?" in tokenizer.decode([int(i) for i in source if i >= 0])
    assert "It is 17." in tokenizer.decode(target.tolist())
    read = int(views[pair.source_readout - 10])
    assert read == -count if count else tokenizer.decode([read]).endswith("?")
    assert tokenizer.decode([int(views[pair.target_readout - 10])]).endswith(".")


def test_what_makes_no_pair(bpe_tokenizer):
    renderer = ChatRenderer(bpe_tokenizer)

    def reason(chat, **options):
        pairs, views, why = standalone_pairs(bpe_tokenizer, renderer, chat, 5, ApartOptions(**options))
        assert not pairs and not len(views)
        return why

    assert reason([ANSWER]) == "no_user_message"
    assert reason([{**USER, "content": ""}, ANSWER]) == "empty_view"
    assert reason([{**USER, "content": ""}, ANSWER], predictors=1) == "empty_view"
    assert reason([USER, {**ANSWER, "content": ""}]) == "empty_view"
    assert reason([USER, ANSWER], last_token=-400) == "view_shorter_than_last_token"


def test_pair_fields_are_what_the_layout_reads(bpe_tokenizer):
    (pair,), views, _ = standalone_pairs(
        bpe_tokenizer, ChatRenderer(bpe_tokenizer), [USER, ANSWER], 7, ApartOptions(predictors=3)
    )
    assert isinstance(pair, Pair) and pair.source_start == 7
    assert 7 <= pair.source_readout <= pair.source_end < pair.target_start <= pair.target_readout < pair.target_end
    assert pair.target_end == 7 + len(views)
