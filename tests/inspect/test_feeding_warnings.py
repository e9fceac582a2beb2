"""Warnings that need a tokenizer: each on data that call for it and on data that do not."""

from support.feeding import NO_SYSTEM, ROWS, feed, warned, words


def test_no_pair_at_all():
    report, _ = feed([ROWS[1]])
    assert warned(report)["no_pairs"].text == "no example of 1 has a pair for step_jepa"
    assert "no_pairs" not in warned(feed([ROWS[1]], "regular")[0])
    assert "no_pairs" not in warned(feed(ROWS)[0])


def test_targets_of_one_token():
    caution = warned(feed(ROWS)[0])["one_token_targets"]
    assert (caution.count, caution.total) == (1, 2)
    assert "one_token_targets" not in warned(feed(ROWS[2:])[0])


def test_a_template_without_a_system_role():
    caution = warned(feed(ROWS, tokenizer=words(NO_SYSTEM))[0])["folded_system"]
    assert (caution.count, caution.total) == (1, 3)
    assert "folded_system" not in warned(feed(ROWS)[0])


def test_unknown_tokens():
    rows = [*ROWS, {"question": "how", "answer": "seven"}]
    report, _ = feed(rows)
    assert report.unknown_tokens == 1
    assert warned(report)["unknown_tokens"].text == "1 of 41 tokens (2.44 %) are the tokenizer's unknown token"
    assert "unknown_tokens" not in warned(feed(ROWS)[0])
    assert "unknown_tokens" not in warned(feed([*ROWS * 40, rows[-1]])[0])  # 1 of 1,367
    # One token that is both, as GPT-2's is.
    report, _ = feed(rows, tokenizer=words(eos_token="<unk>"))
    assert report.unknown_tokens is None and "unknown_tokens" not in warned(report)


def test_what_ends_a_turn():
    report, _ = feed(ROWS, tokenizer=words(pad_token="<end>"))
    assert report.end_is == ("padding", "EOS")
    assert "is also the padding and EOS token, in 3 examples" in warned(report)["end_of_turn_is_padding"].text
    assert feed(ROWS, tokenizer=words(pad_token=None))[0].end_is == (
        "padding",
        "EOS",
    )  # rows are padded with the EOS then
    report, _ = feed(ROWS, tokenizer=words(pad_token="<end>", eos_token="<s>"))
    assert report.end_is == ("padding",)
    assert not {name for name in warned(feed(ROWS)[0]) if "end" in name}


def test_no_end_of_a_turn():
    bare = "{% for m in messages %}{{ m['content'] + ' ' }}{% endfor %}"
    report, _ = feed(ROWS, tokenizer=words(bare, eos_token=None))
    assert report.end_of_turn is None
    assert "nothing ends an answer" in warned(report)["no_end_of_turn"].text
    report, _ = feed(ROWS, tokenizer=words(bare))
    assert (report.end_of_turn, report.end_is) == ("<end>", ("EOS",))  # appended
    assert "no_end_of_turn" not in warned(report)


def test_labels_of_the_published_code():
    report, _ = feed(ROWS, labels="reference")
    assert not report.end_labelled
    assert "--labels reference leaves <end>" in warned(report)["end_of_turn_unlabelled"].text
    assert "end_of_turn_unlabelled" not in warned(feed(ROWS, labels="all")[0])
