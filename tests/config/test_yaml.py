"""YAML files of options: `--config run.yaml`, and what `dump_yaml` writes."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pytest

from stepjepa.config.parser import StrictParser, build
from stepjepa.config.yaml_file import dump_yaml, write_yaml
from stepjepa.errors import ConfigError
from support.options import ALIASES, Color, Options, Trainer


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes run.yaml in the working folder, so that messages name it without a folder."""
    monkeypatch.chdir(tmp_path)

    def run(text: str | bytes) -> str:
        path = Path("run.yaml")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return run


def parse(*argv: str) -> Options:
    return build((Options,), StrictParser((Options,)).values(argv))[0]


def parse_both(*argv: str) -> tuple[Options, Trainer]:
    return build((Options, Trainer), StrictParser((Options, Trainer), aliases=ALIASES).values(argv))


def message(*argv: str, call=parse) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*argv)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("predictors: '3'", "predictors", 3),
        ("lbd: 1e-5", "lbd", 1e-5),
        ("jepa_ratio: ~", "jepa_ratio", None),
        ("step_separator: 3.70", "step_separator", "3.70"),
        ("train_file: 'none'", "train_file", "none"),
        ("lora: yes", "lora", True),
        ("shuffle: off # comment", "shuffle", None),
        ("layers:\n- 1\n- 2", "layers", [1, 2]),
        ("modules: [none, 'null', no, 1]", "modules", ["none", "null", "no", "1"]),
        ("kwargs: {a: 1e-5, b: [no, true, null], c: 010, d: {e: 3}}", "kwargs",
         {"a": 1e-5, "b": ["no", True, None], "c": "010", "d": {"e": 3}}),
        ("kwargs: '{\"a\": 1}'", "kwargs", {"a": 1}),
    ],
)  # fmt: skip
def test_a_key_sets_its_field(line, name, value, write):
    path = write(line)
    if name == "shuffle":  # a word that YAML 1.1 alone takes for a boolean is refused, as it is for a flag
        assert message("--config", path) == "run.yaml:1: shuffle: expected true or false, got 'off'"
        return
    options = parse("--config", path)
    assert options == Options(**{name: value})
    assert type(getattr(options, name)) is type(value)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("predictors: true", "predictors: expected a whole number, got 'true'"),
        ("predictors: [1, 2]", "predictors: expected a whole number, got the list [1, 2]"),
        ("lbd: .nan", "lbd: expected a number, got '.nan'"),
        ("layers: {a: 1}", "layers: expected a list (a whole number each), got a mapping"),
        ("predictor: 3", "unknown key 'predictor'; did you mean 'predictors'?"),
        ("derived: 3", None),
        ("no_lora: true", "unknown key 'no_lora'; write lora: false"),
        ("<<: {lbd: 1}", None),
        ("lbd: !!python/object:os.system {}", None),
    ],
)
def test_a_key_or_value_that_does_not_fit(line, text, write):
    path = write(f"# options\n\nmodules: [a]\n{line}\n")
    got = message("--config", path)
    if text is None:
        assert re.match(r"run.yaml:[45]: (unknown key|not valid YAML: )", got), got
    else:
        assert got == f"run.yaml:4: {text}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "lbd: 1\nlora: true\nlbd: 2\n",
            "run.yaml:3: the key 'lbd' occurs twice, first in run.yaml:1; keep one of them",
        ),
        ("kwargs:\n  a: 1\n  a: 1\n", "run.yaml:3: the key 'a' occurs twice, first in run.yaml:2; keep one of them"),
        ("- lbd\n- 1\n", "run.yaml:1: options: expected a mapping of names to values, got the list [lbd, 1]"),
        ("lbd: 1\n---\nlbd: 2\n", "run.yaml:2: not valid YAML: but found another document"),
        (b"lbd: \xff\xfe\n", "run.yaml: cannot be read as a UTF-8 text file ("),
        ("lbd: \x07\n", "run.yaml: not valid YAML: unacceptable character"),
    ],
)
def test_a_file_that_cannot_be_used(text, expected, write):
    got = message("--config", write(text))
    assert got == expected or (expected.endswith(("(", "character")) and got.startswith(expected)), got


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}\n", "\ufeff", "null\n"])
def test_an_empty_file_sets_nothing(text, write):
    assert StrictParser((Options,)).values(["--config", write(text)]) == {}


def test_a_missing_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message("--config", "run.yml") == "run.yml: no such file; --config takes the path of a YAML file"
    assert message("--config", ".").startswith(".: cannot be read as a UTF-8 text file (")
    assert message("--config", "a", "b") == "--config takes the path of one YAML file, and may be given only once"


def test_flags_win_over_the_file_wherever_they_stand(write):
    path = write("lbd: 1\npredictors: 2\nlora: true\nobjective: regular\n")
    want = {"lbd": 5.0, "predictors": 2, "lora": False, "objective": "step_jepa"}
    argv = ["--lbd", "5", "--no_lora", "--step_jepa"]
    parser = StrictParser((Options, Trainer), aliases=ALIASES)
    for place in range(3):
        line = [*argv[: place + (place > 0)], f"--config={path}", *argv[place + (place > 0) :]]
        assert parser.values(line) == want


def test_aliases_in_the_file(write):
    path = write("batch_size: 4\nregular: true\ninfonce: false\nuse_lora: true\ndebug: 5\nsteps: 9\n")
    options, trainer = parse_both("--config", path)
    assert options == Options(objective="regular", lora=True)
    assert trainer == Trainer(per_device_train_batch_size=4, verbosity=5, max_steps=9)
    assert message("--config", write("lbd: 1\nregular: true\nobjective: llm_jepa\n"), call=parse_both) == (
        "run.yaml:2: regular sets objective to 'regular', but run.yaml:3: objective sets it to 'llm_jepa'; "
        "keep one of them"
    )


# Writing

HARD = Options(
    step_separator="\n\n", train_file="none", target_encoder="none", jepa_ratio=1e-5, lbd=float("inf"), lora=True,
    layers=[], modules=["none", "1e-5", "true", "a: b", "", " x ", "#", "é", "\u2028", "'", '"', "010", "1:30"],
    report_to=["none"], kwargs={"a": "1e-5", "b": {"c": [1, 2.5, None, "no", "null"]}, "d": -3, "e": True, "f": "~"},
    switches={"rope": True}, color=Color.BLUE, color_name="red", seen="true", space=False,
)  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        HARD,
        Options(report_to=None, space="false", seen=True, kwargs="x.json", train_file="~", lbd=-1e-30, horizon=0),
        Options(step_separator="- a\n  b\n\n", train_file="on", seen="5", space="1e5"),
    ],
)
def test_a_dump_parses_back(options, tmp_path):
    path = tmp_path / "made" / "resolved.yaml"
    dump_yaml([options], path)
    assert parse("--config", str(path)) == options
    first = path.read_text()
    dump_yaml([options], path)  # over an existing file
    assert path.read_text() == first and os.listdir(path.parent) == ["resolved.yaml"]


def test_what_a_dump_holds(tmp_path):
    path = tmp_path / "r.yaml"
    options = Options(plugin=Options(), jepa_ratio=None)
    write_yaml({"a": 1}, path, header="Repeat with\n--config r.yaml")
    assert path.read_text() == "# Repeat with\n# --config r.yaml\na: 1\n"
    dump_yaml((options, Trainer(verbose=True)), path)
    text = path.read_text()
    assert text.startswith("objective: step_jepa\n")
    assert "\njepa_ratio" not in text and "plugin" not in text and "derived" not in text
    assert 'step_separator: "\\n\\n"\n' in text and "output_dir: o\nverbose: true\n" in text
    assert parse_both("--config", str(path)) == (dataclasses.replace(options, plugin=None), Trainer(verbose=True))


ARGUMENTS = """--batch_size 3 --learning-rate 1e-5 --lr_scheduler_type cosine --save_strategy no --report_to none
--gradient_checkpointing --gradient_checkpointing_kwargs {"use_reentrant":false} --logging_steps 0.5 --warmup_steps 5
--no_dataloader_pin_memory --eval_strategy epoch --include_num_input_tokens_seen all --label_names a b
--accelerator_config {"even_batches":false} --debug underflow_overflow --resume_from_checkpoint true --hub_token secret
--tf32 none --use_cpu"""


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_training_arguments(tmp_path):
    from stepjepa.training.config import JEPAConfig

    parser = StrictParser((JEPAConfig,), aliases={"batch_size": "per_device_train_batch_size"})
    (args,) = build((JEPAConfig,), parser.values(["--output_dir", str(tmp_path / "run"), *ARGUMENTS.split()]))
    assert (args.per_device_train_batch_size, args.learning_rate, args.save_strategy) == (3, 1e-5, "no")
    assert args.lr_scheduler_type.value == "cosine" and args.report_to == [] and args.label_names == ["a", "b"]
    assert args.gradient_checkpointing_kwargs == {"use_reentrant": False}
    assert args.accelerator_config.even_batches is False and args.debug[0].value == "underflow_overflow"
    path = tmp_path / "resolved.yaml"
    dump_yaml([args], path)
    assert "secret" not in path.read_text() and "local_rank" not in path.read_text()
    (again,) = build((JEPAConfig,), parser.values(["--config", str(path)]))
    dumped = {name for name, option in parser.options.items() if option.dumped}
    assert {*parser.options} - dumped == {"local_rank", "overwrite_output_dir", "resume_from_checkpoint"}
    for name in dumped:
        assert parser.options[name].secret or getattr(again, name) == getattr(args, name), name
    with pytest.raises(ConfigError) as caught:  # the class's own check
        build((JEPAConfig,), parser.values(["--output_dir", "o", "--bf16", "--fp16"]))
    assert "\n" not in str(caught.value)
