"""``stepjepa check`` through the entry point; its counts and warnings are in tests/inspect/test_check.py."""

import json

from stepjepa.cli.main import main
from support.rows import write
from support.runs import printed

ROW = {"question": "How many?", "answer": "First one.\n\nThen two."}
STEPS = {"question": "How many are they?", "answer": "First one.\n\nThen two.\n\nSo three."}


def test_what_a_model_will_see(tmp_path, capsys):
    file = write(tmp_path / "data.jsonl", [ROW, STEPS, 3, {"question": "How " * 40, "answer": "One."}])
    held_out = write(tmp_path / "test.jsonl", [STEPS])
    words = ["check", file, "--eval_file", held_out, "--model_name", "tiny", "--step_jepa", "--max_length", "40"]
    said = " ".join(printed(capsys, words).split())
    for part in (
        f"Format check: {file} Rows: 4 read, 3 usable, 1 skipped",
        "What a model will see: tokenizer tiny (",
        f"entries), step_jepa: 1 * LM + 0.1 * cosine, K = 2 {file}: 4 rows read, 2 kept, 2 skipped, 2 pairs",
        "skipped 1: the prompt alone fills max_length (first: ",
        "1 of 4 rows (25.0 %) are cut or skipped at max_length; the model does not learn",
        f"1 of 1 row (100.0 %) of {held_out} repeat questions of the training file",
        "Verdict: ",
    ):
        assert part in said
    record = json.loads(printed(capsys, [*words, "--json"]))
    assert record["feeding"]["data"]["rows_skipped"] == {"not_an_object": 1, "no_room_for_answer": 1}
    assert [warning["name"] for warning in record["warnings"]] == ["eval_in_train", "truncated"]


def test_plain_text(tmp_path, capsys):
    file = write(tmp_path / "data.jsonl", [{"text": "One and two are three."}, {"input_ids": [5, 6, 7, 8]}])
    words = ["check", file, "--model_name", "tiny"]
    said = " ".join(printed(capsys, words).split())
    assert "Verdict: plain text: train with --objective regular or split or next_latent" in said
    loss = "1 * LM + 0.1 * cosine, K = 1, no gradient into the target"
    assert f"entries), split: {loss} {file}: 2 rows read, 2 kept, 0 skipped, 2 pairs" in said
    assert "entries), regular: LM\n" in printed(capsys, [*words, "--regular"])
    assert main([*words, "--step_jepa"]) == 2 and "step_jepa needs chats" in capsys.readouterr().err
