"""The `stepjepa` command: dispatch, messages, exit statuses. The commands themselves are stand-ins here."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

import stepjepa
from stepjepa.cli import main as main_module
from stepjepa.cli.main import COMMANDS, main
from stepjepa.errors import ConfigError, DataError, StepJepaError


@pytest.fixture
def command(monkeypatch):
    """Puts a function in the place of `stepjepa train` and returns what it was called with."""

    def install(run):
        module = types.ModuleType("stand_in")
        module.run = run
        monkeypatch.setitem(sys.modules, COMMANDS["train"][0], module)

    return install


def raising(error):
    def run(argv):
        raise error

    return run


def run_process(code: str, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **kwargs)


def test_arguments_and_status_pass_through(command):
    seen = []

    def run(argv):
        seen.append(argv)
        return 7

    command(run)
    assert main(["train", "--lbd", "0.5", "--help"]) == 7
    assert seen == [["--lbd", "0.5", "--help"]]


def test_arguments_come_from_the_process_by_default(command, monkeypatch):
    seen = []
    command(lambda argv: seen.append(argv) or 0)
    monkeypatch.setattr(sys, "argv", ["stepjepa", "train", "--x"])
    assert main() == 0
    assert seen == [["--x"]]


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: stepjepa COMMAND")
    for name, (module, text) in COMMANDS.items():
        assert f"  {name} " in out and text in out
        assert module.startswith("stepjepa.cli.")


def test_no_command_shows_the_help_and_is_a_mistake(capsys):
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("usage: ")


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"stepjepa {stepjepa.__version__}\n"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("trian", "unknown command 'trian'; did you mean 'train'?"),
        ("Demo", "unknown command 'Demo'; did you mean 'demo'?"),
        ("inspct", "unknown command 'inspct'; did you mean 'inspect'?"),
        ("--versoin", "unknown option '--versoin'; did you mean '--version'?"),
    ],
)
def test_unknown_command_names_the_nearest(word, message, capsys):
    assert main([word, "--help"]) == 2
    first, second, _ = capsys.readouterr().err.split("\n")
    assert first == f"stepjepa: error: {message}"
    assert second == f"Commands: {', '.join(COMMANDS)}. More: stepjepa --help"


@pytest.mark.parametrize("kind", [StepJepaError, DataError, ConfigError])
def test_errors_of_the_user_are_one_line(kind, command, capsys, monkeypatch):
    monkeypatch.delenv("STEPJEPA_TRACEBACK", raising=False)
    command(raising(kind("data.jsonl:3: no assistant message; add one")))
    assert main(["train"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "stepjepa train: error: data.jsonl:3: no assistant message; add one\n"
    assert captured.out == ""


@pytest.mark.parametrize(("value", "shown"), [("1", True), ("0", False), ("", False)])
def test_traceback_on_request(value, shown, command, capsys, monkeypatch):
    monkeypatch.setenv("STEPJEPA_TRACEBACK", value)
    command(raising(DataError("bad row")))
    assert main(["train"]) == 2
    err = capsys.readouterr().err
    assert ("Traceback (most recent call last)" in err) is shown
    assert err.endswith("stepjepa train: error: bad row\n")


def test_other_errors_are_not_hidden(command):
    command(raising(ZeroDivisionError("a bug")))
    with pytest.raises(ZeroDivisionError):
        main(["train"])


def test_interrupt(command, capsys):
    command(raising(KeyboardInterrupt()))
    assert main(["train"]) == 130
    assert capsys.readouterr().err == "stepjepa train: interrupted\n"


@pytest.mark.parametrize(("code", "status"), [(None, 0), (0, 0), (3, 3), ("no such thing", 1)])
def test_exit_by_argparse_becomes_a_status(code, status, command, capsys):
    command(raising(SystemExit(code)))
    assert main(["train"]) == status
    assert capsys.readouterr().err == (f"{code}\n" if isinstance(code, str) else "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_closed_pipe_is_quiet(unbuffered):
    # As in `stepjepa --help | true`: the reader has gone before anything is written.
    code = "import os, sys\nr, w = os.pipe()\nos.close(r)\nos.dup2(w, 1)\nos.close(w)\n"
    code += "from stepjepa.cli.main import main\nsys.exit(main(['--help']))"
    done = run_process(code, env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
    assert (done.returncode, done.stderr) == (141, "")


def test_a_broken_pipe_elsewhere_is_a_failure(command):
    command(raising(BrokenPipeError("a data worker died")))
    with pytest.raises(BrokenPipeError):
        main(["train"])


def test_python_dash_m():
    done = subprocess.run([sys.executable, "-m", "stepjepa", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"stepjepa {stepjepa.__version__}\n")
    done = subprocess.run([sys.executable, "-m", "stepjepa", "nonsense"], capture_output=True, text=True)
    assert done.returncode == 2 and "unknown command 'nonsense'" in done.stderr


def test_a_command_is_imported_only_when_called():
    modules = [module for module, _ in COMMANDS.values()]
    done = run_process(
        "import sys\nfrom stepjepa.cli.main import main\nmain(['--help'])\nmain(['nonsense'])\n"
        f"assert not set({modules!r}) & set(sys.modules)\n"
        "assert 'transformers' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr


def test_lazy_exports():
    public = {*COMMANDS, "compare", "show_row"}
    assert set(stepjepa.__all__) == {"JEPAConfig", "JEPATrainer", "RowView", "__version__"} | public
    assert set(stepjepa.__all__) <= set(dir(stepjepa)) and callable(stepjepa.show_row)
    with pytest.raises(AttributeError, match="no attribute 'JEPAConfg'"):
        stepjepa.JEPAConfg  # noqa: B018


def test_the_module_table_is_what_main_uses():
    assert main_module.COMMANDS is COMMANDS
    names = "train demo prepare check inspect generate evaluate analyze study export report"
    assert set(COMMANDS) == set(names.split())


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
    argv = command.format(name="runs/stpe", data="data.jsonl").split()
    assert main(argv) == 2
    message = capsys.readouterr().err.strip()
    assert "--model_name runs/stpe: no such folder; did you mean runs/step?" in message, message
