"""YAML files of options: `--config run.yaml`, and what `dump_yaml` writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepjepa.config.parser import StrictParser, build
from stepjepa.config.yaml_file import dump_yaml
from stepjepa.errors import ConfigError
from stepjepa.training.config import JEPAConfig
from support.options import ALIASES, Options, Trainer


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes run.yaml in the working folder, so that messages name it without a folder."""
    monkeypatch.chdir(tmp_path)

    def run(text: str | bytes) -> str:
        Path("run.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return "run.yaml"

    return run


def parse(*argv: str) -> Options:
    return build((Options,), StrictParser((Options,)).values(argv))[0]


def message(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(*argv)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("lbd: 1e-5", "lbd", 1e-5),
        ("jepa_ratio: ~", "jepa_ratio", None),
        ("step_separator: 3.70", "step_separator", "3.70"),
        ("train_file: 'none'", "train_file", "none"),
        ("lora: yes", "lora", True),
        ("layers:\n- 1\n- 2", "layers", [1, 2]),
        ("modules: [none, 'null', no, 1]", "modules", ["none", "null", "no", "1"]),
        ("kwargs: {a: 1e-5, b: [no, true, null], c: 010, d: {e: 3}}", "kwargs",
         {"a": 1e-5, "b": ["no", True, None], "c": "010", "d": {"e": 3}}),
    ],
)  # fmt: skip
def test_a_key_sets_its_field(line, name, value, write):
    options = parse("--config", write(line))
    assert options == Options(**{name: value})
    assert type(getattr(options, name)) is type(value)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("predictors: true", "predictors: expected INT, got 'true'"),
        ("shuffle: off", "shuffle: expected true|false, got 'off'"),  # only YAML 1.1 takes it for a boolean
        ("lbd: .nan", "lbd: expected NUMBER, got '.nan'"),
        ("layers: {a: 1}", "layers: expected INT, got a mapping"),
        ("predictor: 3", "unknown key 'predictor'; did you mean 'predictors'?"),
        ("<<: {lbd: 1}", "unknown key '<<'"),
        ("lbd: !!python/object:os.system {}", "not valid YAML: "),
    ],
)
def test_a_key_or_value_that_does_not_fit(line, text, write):
    got = message("--config", write(f"# options\n\nmodules: [a]\n{line}\n"))
    assert got.startswith(f"run.yaml:4: {text}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "lbd: 1\nlora: true\nlbd: 2\n",
            "run.yaml:3: the key 'lbd' occurs twice, first in run.yaml:1; keep one of them",
        ),
        ("- lbd\n- 1\n", "run.yaml:1: options: expected a mapping of names to values, got the list [lbd, 1]"),
        (b"lbd: \xff\xfe\n", "run.yaml: cannot be read as a UTF-8 text file ("),
        ("lbd: \x07\n", "run.yaml: not valid YAML: unacceptable character"),
    ],
)
def test_a_file_that_cannot_be_used(text, expected, write):
    got = message("--config", write(text))
    assert got == expected or (expected.endswith(("(", "character")) and got.startswith(expected)), got


def test_empty_missing_and_several_files(write):
    assert StrictParser((Options,)).values(["--config", write("# nothing\n")]) == {}
    assert message("--config", "run.yml").startswith("run.yml: cannot be read as a UTF-8 text file ([Errno ")
    assert message("--config", "a", "b") == "--config takes the path of one YAML file, and may be given only once"


def test_flags_win_over_the_file_wherever_they_stand(write):
    path = write("lbd: 1\npredictors: 2\nlora: true\nobjective: regular\n")
    want = {"lbd": 5.0, "predictors": 2, "lora": False, "objective": "step_jepa"}
    argv = ["--lbd", "5", "--no_lora", "--step_jepa"]
    parser = StrictParser((Options, Trainer), aliases=ALIASES)
    for place in range(3):
        line = [*argv[: place + (place > 0)], f"--config={path}", *argv[place + (place > 0) :]]
        assert parser.values(line) == want


# Writing

HARD = Options(
    step_separator="\n\n", train_file="none", target_encoder="none", jepa_ratio=float("inf"), lbd=1e-5, lora=True,
    layers=[-1], modules=["none", "1e-5", "true", "a: b", "", " x ", "#", "é", "\u2028", "'", '"', "010", "1:30"],
    report_to=["none"], kwargs={"a": "1e-5", "b": {"c": [1, 2.5, None, "no", "null"]}, "d": -3, "e": True, "f": "~"},
    switches={"rope": True}, color="blue", seen="true", space=False,
)  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        HARD,
        Options(report_to=None, modules=[], space="false", seen=True, kwargs="x.json", lbd=-1e-30, horizon=0),
    ],
)
def test_a_dump_parses_back(options, tmp_path):
    path = tmp_path / "made" / "resolved.yaml"
    dump_yaml([options], path)
    assert parse("--config", str(path)) == options
    first = path.read_text()
    dump_yaml([options], path)  # over an existing file
    assert path.read_text() == first and os.listdir(path.parent) == ["resolved.yaml"]


ARGUMENTS = """--learning-rate 1e-5 --lr_scheduler_type cosine --report_to none --logging_steps 0.5 --label_names a b
--gradient_checkpointing_kwargs {"use_reentrant":false} --accelerator_config {"even_batches":false}
--debug underflow_overflow --resume_from_checkpoint true --hub_token secret --tf32 none --use_cpu"""


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_training_arguments(tmp_path):
    parser = StrictParser((JEPAConfig,))
    (args,) = build((JEPAConfig,), parser.values(["--output_dir", str(tmp_path / "run"), *ARGUMENTS.split()]))
    assert args.lr_scheduler_type.value == "cosine" and args.accelerator_config.even_batches is False
    path = tmp_path / "resolved.yaml"
    dump_yaml([args], path)
    assert "secret" not in path.read_text()
    (again,) = build((JEPAConfig,), parser.values(["--config", str(path)]))
    dumped = {name for name, option in parser.options.items() if option.dumped}
    assert {*parser.options} - dumped == {"local_rank", "overwrite_output_dir", "resume_from_checkpoint"}
    for name in dumped:
        assert parser.options[name].secret or getattr(again, name) == getattr(args, name), name
