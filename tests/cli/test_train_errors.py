"""Bad input: one clear line (what, where, what to do), exit status 2, no traceback, nothing written or overwritten."""

from __future__ import annotations

import json

import pytest

from stepjepa.cli.main import main
from stepjepa.modeling.load import load_model, load_tokenizer
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
        (lines({"text": "x"}), (), ["line 1", "columns found: text", "a question (question, prompt,"]),
        (lines(GOOD, chat(("user", "x"))), ("--strict_data",), ["line 2", "'assistant'", "--strict_data"]),
        (lines(chat(("user", "x"), ("assistant", "one step"))), STEP, ["no example has a pair", "--step_splitter"]),
        (lines(GOOD), ("--max_length", "4"), ["line 1", "max_length is 4", "raise --max_length"]),
    ],
)
def test_one_clear_line(refused, text, flags, expected):
    message = refused(text, *flags)
    for words in expected:
        assert words in message


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--last_token 2", ["last_token is 2", "at most -1"]),
        ("--jepa_ratio 0 --gamma 0", ["gamma is 0", "nothing would be trained"]),
        ("--max_steps 0", ["max_steps is 0"]),
        ("--step_separator=", ["step_separator"]),
        ("--chat_template nowhere.jinja", ["nowhere.jinja", "cannot be read"]),
        ("--resume_from_checkpoint nowhere", ["nowhere", "no such checkpoint"]),
        ("--model_name minii", ["minii", "mini"]),
        ("--eval_strategy steps", ["--eval_strategy steps", "--eval_file"]),
        ("--eval_on_start", ["eval_on_start needs data", "--eval_file"]),
        ("--include_for_metrics inputs", ["include_for_metrics", "predictions and labels"]),
        ("--label_smoothing_factor 0.1", ["label_smoothing_factor", "does not do"]),
        ("--lora --lora_target_modules nope", ["LoRA", "nope"]),
        ("--lora --lora_target_modules embed_tokens", ["embed_tokens", "embedding"]),
        ("--step_jepa --lora --merge_lora false --keep_predictors", ["keep_predictors needs merge_lora"]),
        ("--attn_implementation flex_attention", ["flex_attention", "no backward on CPU"]),
        ("--regularizer vicreg --batch_size 1", ["vicreg", "per_device_train_batch_size"]),
        ("--infonce --per_device_eval_batch_size 1", ["infonce", "per_device_eval_batch_size"]),
        ("--step_jepa --step_pairs random --multi_horizon 1 2 --infonce --batch_size 1", ["infonce", "per_device"]),
        ("--control shuffled --batch_size 1", ["shuffled", "per_device_train_batch_size"]),
        ("--control random --infonce", ["control=random", "infonce"]),
        ("--step_jepa --views standalone", ["views=standalone", "step_jepa", "llm_jepa"]),
        ("--step_jepa --horizon 30", ["horizon", "30"]),
        ("--step_jepa --multi_horizon 1 2 --horizon 2", ["horizon", "multi_horizon"]),
        ("--step_jepa --forward inline --step_pairs all", ["inline", "one pair"]),
        ("--step_jepa --forward inline --step_pairs plan", ["inline", "one pair"]),
        ("--step_jepa --step_pairs plan --horizon 3 --predictors 0", ["predictors=0", "3 horizons", "predictor_head"]),
        ("--step_jepa --multi_horizon 1 2 --predictors 0", ["predictors=0", "2 horizons", "predictor_head"]),
        ("--objective semantic_tube --tube_sampler steps --tube_times 2", ["semantic_tube", "tube_times=2"]),
        ("--objective semantic_tube --tube_mode curvature --tube_sampler steps", ["curvature", "tube_sampler=steps"]),
        ("--objective semantic_tube --tube_mode curvature --tube_sampler zero", ["curvature", "tube_sampler=zero"]),
        ("--objective semantic_tube --tube_mode e2e --tube_times 3", ["e2e", "tube_times=3"]),
        ("--objective semantic_tube --tube_mode mean --tube_sampler steps", ["mean", "tube_sampler=steps"]),
        ("--objective split --forward inline", ["inline"]),
        ("--front_pred", ["front_pred", "--predictors 1"]),
        ("--front_pred --predictors 1 --views in_context", ["front_pred", "standalone"]),
        ("--step_jepa --front_pred", ["standalone", "step_jepa"]),
        ("--target_encoder ema --target_grad", ["target_encoder", "target_grad"]),
        ("--objective semantic_tube --infonce", ["infonce", "semantic_tube"]),
        ("--objective next_latent --predictors 2", ["next_latent", "predictors"]),
        ("--objective next_latent --target_encoder ema", ["next_latent", "ema"]),
        ("--objective next_latent --predictor_head mlp", ["next_latent", "predictor_head"]),
        ("--objective next_latent --forward inline", ["next_latent", "inline"]),
        ("--objective next_latent --latent_horizon 0", ["latent_horizon"]),
        ("--objective multi_token --jepa_loss mse", ["multi_token", "jepa_loss"]),
        ("--objective multi_token --regularizer vicreg", ["multi_token", "regularizer"]),
        ("--objective multi_token --target_grad false", ["multi_token", "target_grad"]),
        ("--objective multi_token --token_horizon 1", ["token_horizon"]),
        ("--objective future_summary --jepa_loss mse", ["future_summary", "jepa_loss"]),
        ("--objective semantic_tube --tube_mode curvature --jepa_l2", ["curvature", "jepa_loss"]),
        ("--objective semantic_tube --predictors 2", ["semantic_tube", "predictors"]),
        ("--objective semantic_tube --tube_layer 9", ["layer 9", "layers 0 to 3"]),
        ("--readout mean --last_token -2", ["readout=mean", "last_token"]),
        ("--readout median", ["--readout", "median", "last"]),
        ("--readout_layer 4", ["layer 4", "layers 0 to 3"]),
        ("--readout_layer -9", ["layer -9", "layers 0 to 3"]),
        ("--jepa_target_column=", ["jepa_target_column is empty"]),
        ("--jepa_target_column plan", ["rows.jsonl line 1", "'plan' is missing", "columns found: messages"]),
        ("--jepa_target_column plan --forward inline", ["forward=inline", "jepa_target_column=plan"]),
        ("--jepa_target_column plan --reverse_pred", ["reverse_pred", "jepa_target_column"]),
        ("--objective semantic_tube --tube_mode mean --tube_times 3", ["mean", "times"]),
        ("--objective semantic_tube --tube_times 1000000", ["tube_times"]),
        ("--source_column a", ["target_column"]),
        ("--source_column a --target_column b", ["no column 'a'"]),
        ("--plain --chat_template x.jinja", ["plain", "chat_template"]),
    ],
)
def test_flags_that_are_refused(refused, flags, expected):
    message = refused(lines(*step_rows(4)), *flags.split())
    for words in expected:
        assert words in message


def test_folders_of_models_that_cannot_be_used(refused, tmp_path, capsys):
    tokenizer = load_tokenizer("tiny", ["some text"])
    (tmp_path / "model").mkdir()
    message = refused(lines(GOOD), "--model_name", str(tmp_path / "model"))
    assert "the folder holds no tokenizer (tokenizer.json" in message and "save_pretrained" in message
    load_model("tiny", tokenizer).save_pretrained(tmp_path / "model")
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "model")
    capsys.readouterr()  # the bar of writing the model
    message = refused(lines(GOOD), "--model_name", str(tmp_path / "model"))
    assert "no chat template" in message and "--chat_template FILE" in message


# The folder


def train(tmp_path, *flags, text=None):
    data = tmp_path / "rows.jsonl"
    data.write_text(text or lines(*step_rows(8)))
    base = ["train", "--train_file", str(data), "--model_name", "tiny", "--output_dir", str(tmp_path / "out")]
    return main([*base, "--step_jepa", "--max_steps", "1", "--disable_tqdm", "true", *flags])


def test_what_stands_in_the_folder_is_safe(tmp_path, capsys, refused):
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    message = refused(lines(GOOD))
    assert "not empty" in message and "--overwrite_output_dir" in message and "--resume_from_checkpoint" in message
    assert train(tmp_path, "--save_steps", "1", "--overwrite_output_dir") == 0
    assert (out / "checkpoint-1").is_dir()
    before = (out / "model.safetensors").read_bytes()
    for flags, words in (  # everything is checked before anything is cleared
        (["--overwrite_output_dir", "--step_splitter", "numbered"], "no example has a pair"),
        (["--overwrite_output_dir", "--model_name", str(out)], "which would be cleared"),
        (["--resume_from_checkpoint", "true", "--seed", "7"], "seed=42, not 7"),
        (["--resume_from_checkpoint", "true", "--system_prompt", "Be brief."], "system_prompt=None, not Be brief."),
    ):
        assert train(tmp_path, *flags) == 2 and words in capsys.readouterr().err
        assert (out / "model.safetensors").read_bytes() == before and (out / "checkpoint-1").is_dir()
    (out / "predictors.safetensors").write_bytes(b"")  # of a run with them
    assert train(tmp_path, "--overwrite_output_dir", "--save_strategy", "no", "--lbd", "0") == 0
    assert (out / "notes.txt").read_text() == "mine" and (out / "model.safetensors").is_file()
    assert not [name for name in ("checkpoint-1", "predictors.safetensors") if (out / name).exists()]


def test_a_run_killed_before_its_first_checkpoint_may_start_again(tmp_path, capsys):
    out = tmp_path / "out"
    (out / "checkpoint-1").mkdir(parents=True)
    (out / "run.json").write_text('{"steps": 2}')
    (out / "resolved.yaml").write_text("{}")
    assert train(tmp_path, "--resume_from_checkpoint", "true") == 0
    assert "no checkpoint to resume from; starting at step 0" in capsys.readouterr().out


def test_training_on_an_adapter_is_refused(tmp_path, capsys):
    assert train(tmp_path, "--lora", "--merge_lora", "false") == 0
    assert (tmp_path / "out" / "adapter_config.json").exists()
    assert train(tmp_path, "--model_name", str(tmp_path / "out"), "--output_dir", str(tmp_path / "next")) == 2
    assert "is a LoRA adapter" in capsys.readouterr().err
    assert not (tmp_path / "next").exists()


def test_skipped_rows_are_counted_and_short_runs_report_their_losses(tmp_path, capsys):
    text = lines(*step_rows(8), chat(("user", "x")), chat(("user", 7), ("assistant", "y")))
    assert train(tmp_path, text=text) == 0
    report = json.loads((tmp_path / "out" / "data_report.json").read_text())["train"]
    assert (report["rows_read"], report["rows_kept"]) == (10, 8) and report["pairs"] > 0
    assert report["rows_skipped"] == {"no_assistant_message": 1, "content_not_text": 1}
    assert "line 9" in report["first_skipped"]["no_assistant_message"]
    assert "2 skipped" in capsys.readouterr().out
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())["metrics"]
    assert metrics["lm_loss"] > 1 and 0 < metrics["jepa_loss"] < 2
