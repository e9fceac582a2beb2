"""What others wrote reaches the terminal as text: no escape sequence, no endless line; a path that cannot be is one line."""

import json

import pytest

from stepjepa.cli.main import main
from stepjepa.utils.terminal import Bar, print_json, print_text
from stepjepa.utils.text import escaped, one_line
from support.answers import TEST
from support.rows import write

HOSTILE = "\x1b[2J\x1b]0;title\x07 \x9b31m \u202e[/red] \x7f \ud800"


def clean(text: str) -> bool:
    return all(character == "\n" or character.isprintable() for character in text)


def test_text_and_lines(capsys):
    assert escaped("a\nb\t") == "a\\nb\\t" and escaped("\u00e9\u65e5\U0001f600") == "\u00e9\u65e5\U0001f600"
    long = one_line("head " + "x" * 20_000 + " tail", 100)
    assert len(long) == 100 and long.startswith("head xx") and long.endswith("xx tail") and " ... " in long
    with Bar() as bar:  # names of models and rich's markup in them
        bar.begin("[/red] \x1b[31m", 3)
        bar.say("[/red] \x1b[31m")
        bar.step(1)
    print_text(f"{HOSTILE}\nsecond line")
    print_json({"a": [HOSTILE, float("inf")]})
    said = capsys.readouterr()
    assert clean(said.err) and "[/red] \\x1b[31m" in said.err
    assert clean(said.out) and "second line" in said.out.splitlines()


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_predictions_cannot_steer_the_terminal(flags, tmp_path, capsys):
    texts = dict.fromkeys(("ground_truth", "gt_answer", "gen_answer", "note"), HOSTILE)
    wrong = {"question": HOSTILE, "generated_response": f"{HOSTILE} no", **texts}
    wrong |= {"correct": False, "scores": {HOSTILE: 0.0, "gsm8k": float("nan")}}
    rows = [wrong, {**wrong, "correct": True, "scores": {HOSTILE: 1.0}}]
    file = write(tmp_path / "\x1b[31mred.jsonl", rows)
    assert main(["evaluate", "--analyze", file, "--show", "3", *flags]) == 0
    out = capsys.readouterr().out
    assert clean(out) and "title" in out
    if flags:
        record = json.loads(out, parse_constant=pytest.fail)
        assert record["examples"]
        assert [one["question"] for group in record["examples"].values() for one in group] == [HOSTILE]  # as it was
    other = write(tmp_path / "other.jsonl", [{**row, "correct": not row["correct"]} for row in rows])
    assert main(["evaluate", "--analyze", file, other, *flags]) == 0
    assert clean(capsys.readouterr().out)


LONG, UNWRITABLE = "\x1b[31mred\x1b]0;t\x07\nb\u202ed" + "x" * 2000, "out\udcff"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("check {}", LONG),
        ("train --train_file nothing.jsonl --model_name {} --output_dir out", LONG),
        ("{}", LONG),
        ("check --{}", LONG),
        ("prepare rows.jsonl --output_file {}.jsonl", UNWRITABLE),
        ("train --train_file rows.jsonl --model_name tiny --output_dir {}", UNWRITABLE),
    ],
)
def test_paths_that_cannot_be_are_one_printable_line(command, name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "rows.jsonl", TEST[:4])
    assert main([word.format(name) for word in command.split()]) == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if ": error: " in line]
    assert clean(error) and len(error) < 500, error
