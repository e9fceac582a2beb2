"""``stepjepa check`` through the entry point; its counts and warnings are in tests/inspect/test_check.py."""

import json

from stepjepa.cli.main import main
from support.rows import write
from support.runs import printed

ROW = {"question": "How many?", "answer": "First one.\n\nThen two."}
STEPS = {"question": "How many are they?", "answer": "First one.\n\nThen two.\n\nSo three."}


def test_a_good_file(tmp_path, capsys):
    file = write(tmp_path / "data.jsonl", [ROW, ROW])
    lines = printed(capsys, ["check", file]).splitlines()
    for line in (
        f"Format check: {file}",
        "  Rows: 2 read, 2 usable, 0 skipped",
        f"{file} line 1 (2 steps)",
        "    How many?",
        "    Then two.",
        "     2         2 rows  100.0%",
    ):
        assert line in lines
    assert all(len(line) <= 100 or len(line.split()) < 4 for line in lines)
    assert lines[-1] == "Verdict: ready for step_jepa: 2 of 2 rows have two or more steps"


def test_the_report_on_a_good_file_fits_on_a_screen(tmp_path, capsys):
    answers = ["\n\n".join(f"Step {n} adds a number." for n in range(steps)) for steps in (2, 3, 4, 5) * 3]
    rows = [{"question": f"How many are {n}?", "answer": answer} for n, answer in enumerate(answers)]
    file = str(write(tmp_path / "data.jsonl", rows))
    for words in ([], ["--model_name", "tiny", "--step_jepa"]):
        assert main(["check", file, *words]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) <= 30 and max(len(line) for line in lines if file not in line) <= 100
        assert lines[-1].startswith("Verdict: ready")


def test_what_a_model_will_see(tmp_path, capsys):
    file = write(tmp_path / "data.jsonl", [ROW, STEPS, 3, {"question": "How " * 40, "answer": "One."}])
    held_out = write(tmp_path / "test.jsonl", [STEPS])
    words = ["check", file, "--eval_file", held_out, "--model_name", "tiny", "--step_jepa", "--max_length", "40"]
    said = " ".join(printed(capsys, words).split())
    for part in (
        "What a model will see: tokenizer tiny (",
        f"entries), step_jepa, K = 2, packed {file}: 4 rows read, 2 kept, 2 skipped, 2 pairs",
        "skipped 1: the prompt alone fills max_length (first: ",
        "end of turn: <|end|>",
        "1 of 4 rows (25.0 %) are cut or skipped at max_length 40",
        f"1 of 1 row (100.0 %) of {held_out} repeat questions of the training file",
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
    assert f"entries), split, K = 1, packed {file}: 2 rows read, 2 kept, 0 skipped, 2 pairs" in said
    assert "entries), regular" in printed(capsys, [*words, "--regular"])
    assert main([*words, "--step_jepa"]) == 2 and "step_jepa needs chats" in capsys.readouterr().err
