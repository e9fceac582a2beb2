"""``stepjepa generate`` on what cannot be used: one line, exit status 2, nothing written, nobody asked."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from stepjepa.cli.main import main

ROW = json.dumps({"question": "What is 1 + 1?", "answer": "#### 2"}) + "\n"
NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture
def refused(tmp_path, capsys):
    def run(text, *flags, file="data.jsonl"):
        data = tmp_path / file
        if text is not None:
            data.write_text(text)
        out = tmp_path / "out.jsonl"
        fixed = ["--backend", "openai", "--base_url", NOWHERE, "--model_name", "big", "--output_file", str(out)]
        assert main(["generate", str(data), *fixed, *flags]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and not out.exists()
        assert captured.err.startswith("stepjepa generate: error: ") and captured.err.count("\n") == 1
        return captured.err

    return run


@pytest.mark.parametrize(
    ("text", "flags", "words"),
    [
        (None, (), "no such file"),
        ("", (), "empty"),
        (ROW + '{"question"\n', (), "line 2: broken JSON"),
        ('{"q": 1}\n', (), "none of 1 rows can be asked"),
        (ROW, ("--attempt", "3"), "did you mean --attempts?"),
        (ROW, ("--attempts", "0"), "attempts is 0; it must be at least 1"),
        (ROW, ("--temperature", "-1"), "temperature is -1"),
        (ROW, ("--temperature", "0"), "every attempt would say the same"),
        (ROW, ("--concurrency", "0"), "concurrency is 0"),
        (ROW, ("--prompt_template", "Solve it."), "it must hold {question}"),
        (ROW, ("--response_field", "answer"), "response_field is 'answer'"),
        (ROW, ("--output_file", "out.json"), "must end in .jsonl"),
        (ROW, ("--output_file", "none"), "--output_file must be given"),
        (ROW, ("--output_file", "/proc/nowhere/out.jsonl"), "/proc/nowhere/out.partial: cannot be written"),
        (ROW, ("--model_name", "none"), "--model_name must be given"),
        (ROW, ("--base_url", "none"), "needs --base_url"),
        (ROW, ("--base_url", "localhost:8000"), "no address"),
        (ROW, ("--base_url", "http://me:pw@host/v1"), "a key goes into --api_key_env"),
        (ROW, ("--base_url", "http://host:99999/v1"), "no address"),
        (ROW, ("--extra_body", "{"), "expected a JSON object"),
        (ROW, ("--api_key_env", "NO_SUCH_VARIABLE_HERE"), "no environment variable of that name"),
    ],
)
def test_one_clear_line(text, flags, words, refused):
    assert words in refused(text, *flags)


@pytest.mark.parametrize("key", ["sk-proj-abc", "abcdef0123456789"])
def test_a_key_in_place_of_a_name_is_not_repeated(key, refused):
    assert key not in refused(ROW, "--api_key_env", key)


def test_no_file(capsys):
    assert main(["generate"]) == 2
    assert "stepjepa generate FILE" in capsys.readouterr().err


def test_options_from_a_file(tmp_path, refused):
    config = tmp_path / "generate.yaml"
    config.write_text("temperature: 0.5\nprompt_templat: x\n")
    assert "generate.yaml:2: unknown key 'prompt_templat'" in refused(ROW, "--config", str(config))


def test_neither_help_nor_a_server_needs_torch(tmp_path):
    (tmp_path / "data.jsonl").write_text(ROW)
    command = ["generate", str(tmp_path / "data.jsonl"), "--backend", "openai", "--base_url", NOWHERE]
    command += ["--model_name", "t", "--output_file", str(tmp_path / "out.jsonl")]
    code = (
        "import sys\nfrom stepjepa.cli.main import main\n"
        f"assert main(['generate', '--help']) == 0\nassert main({command!r}) == 2\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--attempts" in done.stdout and "cannot be reached" in done.stderr
