"""Bad input: one clear line (what, where, what to do), exit status 2, no traceback, nothing written or overwritten."""

from __future__ import annotations

import json

import pytest

from stepjepa.cli.main import main
from support.rows import step_rows

GOOD = {"messages": [{"role": "user", "content": "Add 2 and 3."}, {"role": "assistant", "content": "a\n\n5"}]}


def lines(*rows):
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def chat(*messages):
    return {"messages": [{"role": role, "content": content} for role, content in messages]}


@pytest.fixture
def refused(tmp_path, capsys):
    """Run `stepjepa train` on a file's text and return the one line that it prints."""

    def run(text, *flags, data="rows.jsonl"):
        path = tmp_path / data
        if text is not None:
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        output = tmp_path / "out"
        before = sorted(output.rglob("*")) if output.exists() else None
        argv = ["train", "--train_file", str(path), "--model_name", "tiny", "--output_dir", str(output), *flags]
        status = main(argv)
        captured = capsys.readouterr()
        assert status == 2
        assert "Traceback" not in captured.err
        assert (sorted(output.rglob("*")) if output.exists() else None) == before, "something was written"
        message = captured.err.strip()
        assert message.startswith("stepjepa train: error: ")
        assert len(message.splitlines()) == 1
        return message

    return run


STEP = ("--step_jepa",)


@pytest.mark.parametrize(
    ("text", "flags", "expected"),
    [
        (None, (), ["rows.jsonl", "no such file"]),
        ("", (), ["rows.jsonl", "empty"]),
        (lines(GOOD, '{"messages": [', GOOD), (), ["rows.jsonl line 2", "broken JSON"]),
        (lines(chat(("user", "x"))), (), ["line 1", "no message has the role 'assistant'"]),
        (lines(chat(("user", "x"), ("robot", "y"))), (), ["line 1", "'robot'", "system, user, assistant"]),
        (lines(chat(("user", 7), ("assistant", "y"))), (), ["line 1", "content of type int", "must be text"]),
        (lines({"text": "x"}), (), ["line 1", "columns found: text", "question/answer"]),
        (lines(GOOD, chat(("user", "x"))), ("--strict_data",), ["line 2", "'assistant'", "--strict_data"]),
        (lines(chat(("user", "x"), ("assistant", "one step"))), STEP, ["no example has a pair", "--step_splitter"]),
        (lines(GOOD), ("--max_length", "4"), ["line 1", "max_length is 4", "raise --max_length"]),
        (
            lines(chat(("user", "x"), ("assistant", "1 " * 50))),
            ("--strict_data", "--max_length", "20"),
            ["line 1", "would be cut", "raise --max_length"],
        ),
        (lines(GOOD), ("--predictors", "-1"), ["predictors is -1", "at least 0"]),
        (lines(GOOD), ("--last_token", "2"), ["last_token is 2", "at most -1"]),
        (lines(GOOD), ("--jepa_ratio", "1.5"), ["jepa_ratio is 1.5"]),
        (lines(GOOD), ("--lbd", "-0.5"), ["lbd is -0.5"]),
        (lines(GOOD), ("--predictor", "2"), ["--predictor", "--predictors"]),
        (lines(GOOD), ("--lbd", "much"), ["--lbd", "much"]),
        (lines(GOOD), ("--objective", "stepjepa"), ["stepjepa", "step_jepa"]),
        (lines(GOOD), ("--step_jepa", "--regular"), ["--step_jepa", "--regular"]),
        (lines(GOOD), ("--step_separator", ""), ["step_separator"]),
        (lines(GOOD), ("--chat_template", "nowhere.jinja"), ["nowhere.jinja", "cannot be read"]),
        (lines(GOOD), ("--resume_from_checkpoint", "nowhere"), ["nowhere", "no such checkpoint"]),
        (lines(GOOD), ("--model_name", "minii"), ["minii", "mini"]),
        (lines(GOOD), ("--eval_strategy", "steps"), ["--eval_strategy steps", "--eval_file"]),
        (lines(GOOD), ("--label_smoothing_factor", "0.1"), ["label_smoothing_factor", "does not do"]),
        (lines(GOOD), ("--lora", "--lora_target_modules", "nope"), ["LoRA", "nope"]),
        (lines(GOOD), ("--lora", "--lora_target_modules", "embed_tokens"), ["embed_tokens", "embedding"]),
        (lines(GOOD), ("--attn_implementation", "flex_attention"), ["flex_attention", "no backward on CPU"]),
    ],
)
def test_one_clear_line(refused, text, flags, expected):
    message = refused(text, *flags)
    for words in expected:
        assert words in message


def test_no_chat_template(refused, tmp_path, capsys):
    from stepjepa.modeling.load import load_model, load_tokenizer

    tokenizer = load_tokenizer("tiny", ["some text"])
    load_model("tiny", tokenizer).save_pretrained(tmp_path / "model")
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "model")
    capsys.readouterr()  # the bar of writing the model
    message = refused(lines(GOOD), "--model_name", str(tmp_path / "model"))
    assert "no chat template" in message and "--chat_template FILE" in message


def test_a_folder_without_a_model(refused, tmp_path):
    (tmp_path / "model").mkdir()
    message = refused(lines(GOOD), "--model_name", str(tmp_path / "model"))
    assert "cannot be loaded" in message and "save_pretrained" in message


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        ("lbd: 0.1\npredictor: 2\n", ["run.yaml", "2", "predictor", "predictors"]),
        ("predictors: 3.7\n", ["run.yaml", "1", "predictors", "3.7"]),
        ("objective: stepjepa\n", ["run.yaml", "objective", "step_jepa"]),
        ("lbd: [0.1]\n", ["run.yaml", "lbd"]),
        ("- lbd\n", ["run.yaml"]),
    ],
)
def test_yaml(refused, tmp_path, yaml, expected):
    (tmp_path / "run.yaml").write_text(yaml)
    message = refused(lines(GOOD), "--config", str(tmp_path / "run.yaml"))
    for words in expected:
        assert words in message


def test_output_folder_is_not_empty(refused, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    message = refused(lines(GOOD))
    assert "not empty" in message and "--overwrite_output_dir" in message and "--resume_from_checkpoint" in message
    assert (tmp_path / "out" / "thesis.tex").read_text() == "years of work"


def train(tmp_path, *flags):
    data = tmp_path / "rows.jsonl"
    data.write_text(lines(*step_rows(8)))
    base = ["train", "--train_file", str(data), "--model_name", "tiny", "--output_dir", str(tmp_path / "out")]
    return main([*base, "--step_jepa", "--max_steps", "1", "--disable_tqdm", "true", *flags])


def test_overwriting_removes_what_a_run_writes_and_nothing_else(tmp_path, capsys):
    assert train(tmp_path, "--save_steps", "1") == 0
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert (tmp_path / "out" / "checkpoint-1").is_dir()
    assert train(tmp_path, "--overwrite_output_dir", "--save_strategy", "no") == 0
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "out" / "checkpoint-1").exists()
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_overwriting_waits_until_everything_was_checked(tmp_path, capsys):
    assert train(tmp_path) == 0
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert train(tmp_path, "--overwrite_output_dir", "--step_splitter", "numbered") == 2
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before


def test_resuming_with_other_settings_or_data_is_refused(tmp_path, capsys):
    assert train(tmp_path, "--save_steps", "1") == 0
    assert train(tmp_path, "--resume_from_checkpoint", "true", "--lbd", "0.7") == 2
    assert "lbd=0.1, not 0.7" in capsys.readouterr().err
    assert train(tmp_path, "--resume_from_checkpoint", "true", "--system_prompt", "Be brief.") == 2
    assert "system_prompt=None, not Be brief." in capsys.readouterr().err
    rows = tmp_path / "other.jsonl"
    rows.write_text(lines(*step_rows(8, seed=9)))
    assert train(tmp_path, "--resume_from_checkpoint", "true", "--train_file", str(rows)) == 2
    assert "the training data is not that of the run" in capsys.readouterr().err


def test_resuming_never_starts_over_on_top_of_something(tmp_path, capsys):
    assert train(tmp_path, "--save_strategy", "no") == 0
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert train(tmp_path, "--save_strategy", "no", "--resume_from_checkpoint", "true", "--seed", "7") == 2
    assert "seed=42, not 7" in capsys.readouterr().err
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before


def test_a_run_killed_before_its_first_checkpoint_may_start_again(tmp_path, capsys):
    out = tmp_path / "out"
    (out / "checkpoint-1").mkdir(parents=True)
    for name in ("resolved.yaml", "run.json", "data_report.json"):
        (out / name).write_text("{}")
    assert train(tmp_path, "--resume_from_checkpoint", "true") == 0
    assert "no checkpoint to resume from; starting at step 0" in capsys.readouterr().out


def test_overwriting_the_folder_of_the_model_is_refused(tmp_path, capsys):
    assert train(tmp_path) == 0
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert train(tmp_path, "--model_name", str(tmp_path / "out"), "--overwrite_output_dir") == 2
    assert "which would be cleared" in capsys.readouterr().err
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before


def test_training_on_an_adapter_is_refused(tmp_path, capsys):
    assert train(tmp_path, "--lora", "--merge_lora", "false") == 0
    assert (tmp_path / "out" / "adapter_config.json").exists()
    assert train(tmp_path, "--model_name", str(tmp_path / "out"), "--output_dir", str(tmp_path / "next")) == 2
    assert "is a LoRA adapter" in capsys.readouterr().err
    assert not (tmp_path / "next").exists()


def test_short_runs_report_their_losses(tmp_path, capsys):
    assert train(tmp_path) == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())["metrics"]
    assert metrics["lm_loss"] > 1 and 0 < metrics["jepa_loss"] < 2


def test_skipped_rows_are_counted(tmp_path, capsys):
    data = tmp_path / "rows.jsonl"
    data.write_text(lines(*step_rows(8), chat(("user", "x")), chat(("user", 7), ("assistant", "y"))))
    argv = ["train", "--train_file", str(data), "--model_name", "tiny", "--output_dir", str(tmp_path / "out")]
    assert main([*argv, "--max_steps", "1", "--disable_tqdm", "true", "--predictors", "1"]) == 0
    report = json.loads((tmp_path / "out" / "data_report.json").read_text())["train"]
    assert (report["rows_read"], report["rows_kept"], report["pairs"]) == (10, 8, 8)
    assert report["rows_skipped"] == {"no_assistant_message": 1, "content_not_text": 1}
    assert "line 9" in report["first_skipped"]["no_assistant_message"]
    assert "2 skipped" in capsys.readouterr().out


def test_resolved_yaml_repeats_the_run(tmp_path, capsys):
    assert train(tmp_path, "--lbd", "0.3", "--seed", "9") == 0
    first = (tmp_path / "out" / "model.safetensors").read_bytes()
    resolved = tmp_path / "out" / "resolved.yaml"
    assert main(["train", "--config", str(resolved), "--output_dir", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == first
    record = json.loads((tmp_path / "again" / "run.json").read_text())
    assert record["settings"]["lbd"] == 0.3 and record["settings"]["seed"] == 9
