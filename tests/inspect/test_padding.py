"""What batches cost, counted by hand."""

from stepjepa.forest.collate import ForestCollator
from stepjepa.forest.two_pass import TwoPassCollator
from stepjepa.inspect.feeding_words import padding_lines
from stepjepa.inspect.padding import Form, measure_padding, segment_tokens
from support.feeding import ROWS, feed


def examples(**options):
    _, sampled = feed(ROWS, **options)
    return [example for example, _ in sampled]


def test_padding_by_hand():
    predictors = (17, 18)
    padding = measure_padding(examples(), ForestCollator(predictors, 0), batch_size=2, max_length=20)
    assert (padding.batch_size, padding.batches, padding.max_length) == (2, 1, 20)
    # Two chats of 13 and 8 tokens, a source of 8 and two predictors, a target of 1.
    assert padding.sequences == 4
    assert (padding.fixed_chats, padding.fixed_views) == (2 * 20, 4 * 20)
    assert (padding.longest_chats, padding.longest_views) == (2 * 13, 2 * 13 + 2 * 10)
    # One row: 13 + 2 + 1 and 8.
    assert (padding.packed, padding.packed_rows, padding.tokens) == (24, 1, 24)
    lines = padding_lines(padding)
    assert lines[0] == "Positions in a batch of 2 (mean of 1 batch):"
    assert [line.split()[-2:] for line in lines[2:4]] == [["40", "26"], ["80", "46"]]
    assert lines[4].split()[-1] == "24"
    assert "30.0 % of the positions of chats and views padded to max_length, as the published code" in lines[5]
    assert "52.2 % of those padded to the longest" in lines[5]


def test_padding_is_the_mean_of_whole_batches():
    first, second, third = examples(objective="regular")  # 13, 8 and 13 tokens
    collator = ForestCollator((), 0, 1)
    padding = measure_padding([first, second, second, third, third], collator, batch_size=2, max_length=20)
    assert (padding.batches, padding.longest_chats, padding.packed) == (2, 26, 21)
    assert padding.sequences == 2
    alone = measure_padding([first, second], collator, batch_size=8, max_length=20)
    assert (alone.batch_size, alone.batches, alone.longest_chats) == (2, 1, 26)
    assert "chats and views" not in "\n".join(padding_lines(alone))
    assert "texts alone" in "\n".join(padding_lines(alone, "texts"))
    assert "published" not in "\n".join(padding_lines(alone, "texts"))


def test_targets_in_rows_of_their_own_count():
    collator = ForestCollator((17, 18), 0, 1, separate_targets=True)
    padding = measure_padding(examples(), collator, batch_size=3, max_length=20)
    together = measure_padding(examples(), ForestCollator((17, 18), 0, 1), batch_size=3, max_length=20)
    assert padding.tokens == together.tokens == 34 + 4 + 3
    assert padding.packed_rows == together.packed_rows + 1


def test_other_forms():
    some = examples()
    padding = measure_padding(some, TwoPassCollator((17, 18), 0), batch_size=3, max_length=20)
    assert padding.packed == padding.longest_views == 3 * 13 + 4 * 12
    assert padding.tokens == 34 + (8 + 2) + 1 + (10 + 2) + 2
    kinds = segment_tokens([(example, ()) for example in some], some, Form(2, forward="two_pass"), 17)
    assert (kinds["text"], kinds["predictors"]) == (34, 4)
    assert (kinds["source copies"], kinds["target copies"]) == (8 + 10, 1 + 2)
    kinds = segment_tokens([(example, ()) for example in some], some, Form(2, forward="inline"), 17)
    assert (kinds["predictors"], kinds["source copies"], kinds["target copies"]) == (4, 0, 0)
