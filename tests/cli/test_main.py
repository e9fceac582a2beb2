"""The `stepjepa` command: dispatch, messages, exit statuses, --help, --version and --quiet."""

import subprocess
import sys
from unittest.mock import Mock

import pytest

import stepjepa
from stepjepa.cli.main import COMMANDS, main
from stepjepa.errors import DataError
from stepjepa.utils.terminal import say
from support.rows import write


@pytest.fixture
def command(monkeypatch):
    """Lets every command raise an error."""
    return lambda error: monkeypatch.setattr("stepjepa.cli.main.run", Mock(side_effect=error))


def test_help_and_version(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: stepjepa COMMAND")
    assert all(f"  {name} " in out and command.summary in out for name, command in COMMANDS.items())
    assert main([]) == 2 and capsys.readouterr().err == out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"stepjepa {stepjepa.__version__}\n"
    assert main(["Demo", "--help"]) == 2
    assert capsys.readouterr().err.startswith("stepjepa: error: unknown command 'Demo'; did you mean 'demo'?\n")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (DataError("bad row"), 2, "stepjepa train: error: bad row\n"),
        (KeyboardInterrupt(), 130, "stepjepa train: interrupted\n"),
        (SystemExit(None), 0, ""),  # argparse leaves this way
        (SystemExit("no such thing"), 1, "no such thing\n"),
    ],
)
def test_what_a_command_raises_becomes_a_line_and_a_status(error, status, message, command, capsys, monkeypatch):
    monkeypatch.delenv("STEPJEPA_TRACEBACK", raising=False)
    command(error)
    assert main(["train"]) == status
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", message)


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), BrokenPipeError("a data worker died")])
def test_other_errors_are_not_hidden(error, command):
    command(error)
    with pytest.raises(type(error)):
        main(["train"])


def test_closed_pipe_is_quiet():
    # As in `stepjepa --help | true`: the reader has gone before anything is written.
    code = "import os, sys\nr, w = os.pipe()\nos.close(r)\nos.dup2(w, 1)\nos.close(w)\n"
    code += "from stepjepa.cli.main import main\nsys.exit(main(['--help']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (141, "")


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
    assert main(["--quiet", "evaluate", str(run), str(tmp_path / "no.jsonl"), *flags]) == 2
    assert "no such file" in capfd.readouterr().err
    say("loud again")
    assert capfd.readouterr().out == "loud again\n"
