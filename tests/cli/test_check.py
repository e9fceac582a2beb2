"""``stepjepa check`` of plain text; chats are in tests/inspect/test_check.py and in the commands of the pages."""

from support.rows import write
from support.runs import printed


def test_plain_text_is_read_for_the_first_objective_that_makes_pairs_of_it(tmp_path, capsys):
    file = write(tmp_path / "data.jsonl", [{"text": "One and two are three."}, {"input_ids": [5, 6, 7, 8]}])
    words = ["check", file, "--model_name", "tiny"]
    said = " ".join(printed(capsys, words).split())
    loss = "1 * LM + 0.1 * cosine, K = 1, no gradient into the target"
    assert f"entries), split: {loss} {file}: 2 rows read, 2 kept, 0 skipped, 2 pairs" in said
    assert "entries), regular: LM\n" in printed(capsys, [*words, "--regular"])
