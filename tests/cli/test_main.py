"""The `stepjepa` command: dispatch, messages, exit statuses, `help`, `version`, --quiet, and words that left."""

import subprocess
import sys

import pytest

import stepjepa
from stepjepa.cli.main import COMMANDS, main
from stepjepa.config.parser import StrictParser
from stepjepa.config.spellings import published
from stepjepa.errors import ConfigError, DataError
from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import RunOptions
from stepjepa.utils.terminal import say
from support.rows import write


@pytest.fixture
def command(monkeypatch):
    """Puts a function, or an error that is raised, in the place of `stepjepa train`."""

    def install(run):
        def fail(name, argv):
            raise run

        called = fail if isinstance(run, BaseException) else lambda name, argv: run(argv)
        monkeypatch.setattr("stepjepa.cli.main.run", called)

    return install


def run_process(*words: str, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, **kwargs)


def test_help_and_version(capsys):
    names = "train demo prepare check inspect generate evaluate analyze study export report doctor"
    assert set(COMMANDS) == set(names.split())
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: stepjepa COMMAND")
    assert all(f"  {name} " in out and command.summary in out for name, command in COMMANDS.items())
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == out
    assert main(["--version"]) == 0 == main(["version"])
    assert capsys.readouterr().out == f"stepjepa {stepjepa.__version__}\n" * 2
    assert main(["prepare", "--help"]) == 0 == main(["help", "prepare"])
    both = capsys.readouterr().out
    assert both[: len(both) // 2] == both[len(both) // 2 :] != ""


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("Demo", "unknown command 'Demo'; did you mean 'demo'?"),
        ("sft", "unknown command 'sft'; did you mean 'train'?"),
        ("--versoin", "unknown option '--versoin'; did you mean '--version'?"),
    ],
)
def test_unknown_command_names_the_nearest(word, message, capsys):
    assert main([word, "--help"]) == 2
    assert capsys.readouterr().err == (
        f"stepjepa: error: {message}\nCommands: {', '.join(COMMANDS)}. More: stepjepa --help\n"
    )


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (DataError("bad row"), 2, "stepjepa train: error: bad row\n"),
        (ConfigError("bad row"), 2, "stepjepa train: error: bad row\n"),
        (KeyboardInterrupt(), 130, "stepjepa train: interrupted\n"),
        (SystemExit(None), 0, ""),  # argparse leaves this way
        (SystemExit(3), 3, ""),
        (SystemExit("no such thing"), 1, "no such thing\n"),
    ],
)
def test_what_a_command_raises_becomes_a_line_and_a_status(error, status, message, command, capsys, monkeypatch):
    monkeypatch.delenv("STEPJEPA_TRACEBACK", raising=False)
    command(error)
    assert main(["train"]) == status
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", message)


def test_traceback_on_request(command, capsys, monkeypatch):
    monkeypatch.setenv("STEPJEPA_TRACEBACK", "1")
    command(DataError("bad row"))
    assert main(["train"]) == 2
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err and err.endswith("stepjepa train: error: bad row\n")


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), BrokenPipeError("a data worker died")])
def test_other_errors_are_not_hidden(error, command):
    command(error)
    with pytest.raises(type(error)):
        main(["train"])


def test_closed_pipe_is_quiet():
    # As in `stepjepa --help | true`: the reader has gone before anything is written.
    code = "import os, sys\nr, w = os.pipe()\nos.close(r)\nos.dup2(w, 1)\nos.close(w)\n"
    code += "from stepjepa.cli.main import main\nsys.exit(main(['--help']))"
    done = run_process("-c", code)
    assert (done.returncode, done.stderr) == (141, "")


def test_python_dash_m():
    done = run_process("-m", "stepjepa", "nonsense")
    assert done.returncode == 2 and "unknown command 'nonsense'" in done.stderr


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("score solutions.jsonl --model_path run", "score: energies of solutions were removed"),
        ("--print-completion bash", "--print-completion: shell completion was removed"),
    ],
)
def test_what_left_is_answered_in_one_line(words, answer, capsys):
    assert main(words.split()) == 2
    error = capsys.readouterr().err.strip()
    assert answer in error and error.count("\n") == 0


def test_an_older_resolved_yaml_still_repeats_its_run(tmp_path):
    """It holds every option with its value, those that left with their defaults too."""
    file = tmp_path / "resolved.yaml"
    file.write_text("lbd: 0.5\nallow_code_execution: false\ndata_cache: null\nengine: processes\n")
    parser = StrictParser((RunOptions, JEPAConfig), aliases=published(RunOptions, JEPAConfig))
    assert parser.values(["--config", str(file)]) == {"lbd": 0.5}
    file.write_text("allow_code_execution: true\n")
    with pytest.raises(
        ConfigError, match="resolved.yaml:1: allow_code_execution: running code that a model writes is no longer"
    ):
        parser.values(["--config", str(file)])


def test_quiet_commands_print_errors_and_results(tmp_path, capfd):
    rows = [{"question": f"{n} + 1?", "answer": f"Add one.\n\nIt is {n + 1}."} for n in range(4)]
    file, run = write(tmp_path / "rows.jsonl", rows), tmp_path / "run"
    flags = f"--train_file {file} --model_name tiny --max_steps 1 --logging_steps 1 --step_jepa --output_dir {run}"
    assert main(["train", "--quiet", *flags.split()]) == 0
    said = capfd.readouterr()
    assert said.err == "" and said.out.strip().startswith("done ") and "step 1/1" not in said.out
    flags = ["--metric", "exact", "--max_new_tokens", "2"]
    assert main(["evaluate", str(run), str(file), *flags, "--quiet"]) == 0
    said = capfd.readouterr()
    assert said.err == "" and said.out.startswith("exact ")
    assert main(["evaluate", "--quiet", str(run), str(tmp_path / "no.jsonl"), *flags]) == 2
    assert "no such file" in capfd.readouterr().err
    assert main(["--quiet", "evaluate", str(run), str(file), *flags]) == 0, "in front of the command too"
    assert capfd.readouterr().err == ""
    say("loud again")
    assert capfd.readouterr().out == "loud again\n"
