"""The `stepjepa` command: dispatch, messages, exit statuses. The commands themselves are stand-ins here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stepjepa
from stepjepa.cli.main import COMMANDS, main
from stepjepa.errors import ConfigError, DataError, StepJepaError, said


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


def test_arguments_and_status_pass_through(command, monkeypatch):
    seen = []
    command(lambda argv: seen.append(argv) or 7)
    assert main(["train", "--lbd", "0.5", "--help"]) == 7
    monkeypatch.setattr(sys, "argv", ["stepjepa", "train", "--x"])
    assert main() == 7
    assert seen == [["--lbd", "0.5", "--help"], ["--x"]]


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
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"stepjepa {stepjepa.__version__}\n"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("Demo", "unknown command 'Demo'; did you mean 'demo'?"),
        ("inspct", "unknown command 'inspct'; did you mean 'inspect'?"),
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
        (StepJepaError("bad row"), 2, "stepjepa train: error: bad row\n"),
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


def test_what_another_library_says_is_one_line():
    assert said(ValueError(" a\n b  c")) == "a b c" and said(ValueError("a:\nb"), lines=1) == "a:"
    assert said(OSError()) == said(OSError(" \n"), lines=1) == "OSError"


@pytest.mark.parametrize(("value", "shown"), [("1", True), ("0", False)])
def test_traceback_on_request(value, shown, command, capsys, monkeypatch):
    monkeypatch.setenv("STEPJEPA_TRACEBACK", value)
    command(DataError("bad row"))
    assert main(["train"]) == 2
    err = capsys.readouterr().err
    assert ("Traceback (most recent call last)" in err) is shown and err.endswith("stepjepa train: error: bad row\n")


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), BrokenPipeError("a data worker died")])
def test_other_errors_are_not_hidden(error, command):
    command(error)
    with pytest.raises(type(error)):
        main(["train"])


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_closed_pipe_is_quiet(unbuffered):
    # As in `stepjepa --help | true`: the reader has gone before anything is written.
    code = "import os, sys\nr, w = os.pipe()\nos.close(r)\nos.dup2(w, 1)\nos.close(w)\n"
    code += "from stepjepa.cli.main import main\nsys.exit(main(['--help']))"
    done = run_process("-c", code, env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
    assert (done.returncode, done.stderr) == (141, "")


def test_python_dash_m():
    done = run_process("-m", "stepjepa", "nonsense")
    assert done.returncode == 2 and "unknown command 'nonsense'" in done.stderr


def test_a_command_is_imported_only_when_called():
    code = "import sys\nfrom stepjepa.cli.main import main\nmain(['--help'])\nmain(['nonsense'])\n"
    code += "assert not {'numpy', 'stepjepa.training.options'} & set(sys.modules)"
    done = run_process("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that nobody can write to")
@pytest.mark.parametrize(
    "command",
    [
        "train --train_file {data} --model_name tiny --output_dir /proc/x",
        "demo --output_dir /proc/x",
        "analyze {data} --models nothing --output_dir /proc/x",
        "study builtin --mini --output_dir /proc/x",
    ],
)
def test_a_folder_that_cannot_be_written_to_is_one_line(command, tmp_path, capsys):
    data = tmp_path / "data.jsonl"
    data.write_text('{"question": "a", "answer": "b"}\n')
    assert main(command.format(data=data).split()) == 2
    message = capsys.readouterr().err.strip()
    assert message.count("\n") == 0 and "--output_dir /proc/x: cannot be written (" in message, message


@pytest.mark.parametrize(
    "command", ["evaluate {name} {data} --metric gsm8k", "train --train_file {data} --model_name {name}"]
)
def test_a_local_model_that_is_not_there_is_not_looked_for_on_the_hub(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "step").mkdir(parents=True)
    (tmp_path / "data.jsonl").write_text('{"question": "a", "answer": "b"}\n')
    assert main(command.format(name="runs/stpe", data="data.jsonl").split()) == 2
    message = capsys.readouterr().err.strip()
    assert "--model_name runs/stpe: no such folder; did you mean runs/step?" in message, message
    assert main(command.format(name="runs/tube", data="data.jsonl").split()) == 2
    message = capsys.readouterr().err.strip()
    assert "--model_name runs/tube: no such folder (for a model of the Hub" in message, message
