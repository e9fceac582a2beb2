"""StrictParser: `--config run.yaml`. Writing such files is in test_dump_yaml.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepjepa.config.parser import StrictParser
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
    return StrictParser(Options).parse(list(argv))[0]


def parse_both(*argv: str) -> tuple[Options, Trainer]:
    return StrictParser((Options, Trainer), aliases=ALIASES).parse(["--output_dir", "out", *argv])


def message(*argv: str, call=parse) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*argv)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("objective: regular", "objective", "regular"),
        ("predictors: 3", "predictors", 3),
        ("predictors: '3'", "predictors", 3),
        ("lbd: 1e-5", "lbd", 1e-5),
        ("lbd: 2", "lbd", 2.0),
        ("lbd: .inf", "lbd", float("inf")),
        ("jepa_ratio: null", "jepa_ratio", None),
        ("jepa_ratio: none", "jepa_ratio", None),
        ("jepa_ratio: ~", "jepa_ratio", None),
        ("jepa_ratio:", "jepa_ratio", None),
        ('step_separator: "\\n"', "step_separator", "\n"),
        ("step_separator: no", "step_separator", "no"),
        ("step_separator: 3.70", "step_separator", "3.70"),
        ("step_separator: 2024-01-31", "step_separator", "2024-01-31"),
        ("step_separator: |\n  a\n  b\n", "step_separator", "a\nb\n"),
        ("train_file: 'none'", "train_file", "none"),
        ("train_file: none", "train_file", None),
        ("lora: true", "lora", True),
        ("lora: yes", "lora", True),
        ("shuffle: off # comment", "shuffle", None),
        ("tf32: false", "tf32", False),
        ("layers: [1, -2]", "layers", [1, -2]),
        ("layers:\n- 1\n- 2", "layers", [1, 2]),
        ("layers: 4", "layers", [4]),
        ("layers: []", "layers", []),
        ("report_to: none", "report_to", "none"),
        ("report_to: [wandb]", "report_to", ["wandb"]),
        ("modules: [none, 'null', no, 1]", "modules", ["none", "null", "no", "1"]),
        ("kwargs: {a: 1e-5, b: [no, true, null], c: 010, d: {e: 3}}", "kwargs",
         {"a": 1e-5, "b": ["no", True, None], "c": "010", "d": {"e": 3}}),
        ("kwargs: '{\"a\": 1}'", "kwargs", {"a": 1}),
        ("kwargs: file.json", "kwargs", "file.json"),
        ("kwargs: {}", "kwargs", {}),
        ("switches:\n  rope: false", "switches", {"rope": False}),
        ("color: blue", "color", Color.BLUE),
        ("seen: no", "seen", "no"),
        ("seen: true", "seen", True),
        ("seen: 'true'", "seen", "true"),
        ("space: false", "space", False),
        ("space: 'false'", "space", "false"),
        ("folder: a/b", "folder", Path("a/b")),
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
        ("predictors: 3.7", "predictors: expected a whole number, got '3.7'"),
        ("predictors: yes", "predictors: expected a whole number, got 'yes'"),
        ("predictors: true", "predictors: expected a whole number, got 'true'"),
        ("predictors: null", "predictors: expected a whole number, got no value"),
        ("predictors:", "predictors: expected a whole number, got no value"),
        ("predictors: [1, 2]", "predictors: expected a whole number, got the list [1, 2]"),
        ("predictors: {a: 1}", "predictors: expected a whole number, got a mapping"),
        ("predictors: []", "predictors: expected a whole number, got the list []"),
        ("lbd: big", "lbd: expected a number, got 'big'"),
        ("lbd: .nan", "lbd: expected a number, got '.nan'"),
        ("lora: 2", "lora: expected true or false, got '2'"),
        ("lora: []", "lora: expected true or false, got the list []"),
        (
            "objective: step_jeppa",
            "objective: expected one of regular, llm_jepa, step_jepa, got 'step_jeppa'; did you mean 'step_jepa'?",
        ),
        ("objective: [regular]", "objective: expected one of regular, llm_jepa, step_jepa, got the list [regular]"),
        ("step_separator: [a]", "step_separator: expected text, got the list [a]"),
        ("step_separator: null", "step_separator: expected text, got no value"),
        ("layers: [1, x]", "layers: expected a whole number, got 'x'"),
        ("layers: [1, [2]]", "layers: expected a whole number, got the list [2]"),
        ("layers: [1, null]", "layers: expected a whole number, got no value"),
        ("layers: {a: 1}", "layers: expected a list (a whole number each), got a mapping"),
        ("switches: {rope: 1}", "switches: expected true or false for 'rope', got 1"),
        ("level: inof", "level: expected one of info, debug, got 'inof'; did you mean 'info'?"),
        ("predictor: 3", "unknown key 'predictor'; did you mean 'predictors'?"),
        ("jepa-ratio: 3", "unknown key 'jepa-ratio'; did you mean 'jepa_ratio'?"),
        ("--lbd: 3", "unknown key '--lbd'; did you mean 'lbd'?"),
        ("derived: 3", None),
        ("no_lora: true", "unknown key 'no_lora'; did you mean 'lora'?"),
        ("config: other.yaml", None),
        ("<<: {lbd: 1}", None),
        ("? [a, b]\n: 1", "expected an option's name as the key, got a list"),
        ("lbd: !!python/object:os.system {}", None),
        ("lbd: *base", "not valid YAML: found undefined alias 'base'"),
        ("lbd: [1, 2", None),
        ("layers: &a [*a]", None),
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
        ("lbd: 1\nlora: true\nlbd: 2\n", "run.yaml:3: the key 'lbd' stands here and on line 1; keep one of them"),
        ("kwargs:\n  a: 1\n  a: 1\n", "run.yaml:3: the key 'a' stands here and on line 2; keep one of them"),
        (
            "- lbd\n- 1\n",
            "run.yaml:1: expected a mapping of option names to values, such as 'learning_rate: 2e-5', got a list",
        ),
        (
            "\njust words\n",
            "run.yaml:2: expected a mapping of option names to values, such as 'learning_rate: 2e-5', "
            "got the text 'just words'",
        ),
        ("lbd: 1\n---\nlbd: 2\n", "run.yaml:2: not valid YAML: but found another document"),
        ("lbd: 1\n\tlora: true\n", "run.yaml:2: not valid YAML: found character '\\t' that cannot start any token"),
        (b"lbd: \xff\xfe\n", "run.yaml: cannot be read as a UTF-8 text file ("),
        ("lbd: \x07\n", "run.yaml: not valid YAML: unacceptable character"),
    ],
)
def test_a_file_that_cannot_be_used(text, expected, write):
    got = message("--config", write(text))
    assert got == expected or (expected.endswith(("(", "character")) and got.startswith(expected)), got


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}\n", "\ufeff", "null\n"])
def test_an_empty_file_sets_nothing(text, write):
    parser = StrictParser(Options)
    assert parser.parse(["--config", write(text)]) == (Options(),)
    assert parser.explicit == set()


def test_a_missing_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message("--config", "run.yml") == "run.yml: no such file; --config takes the path of a YAML file"
    assert message("--config", ".").startswith(".: cannot be read as a UTF-8 text file (")
    for argv in (["--config"], ["--config", "a", "b"], ["--config", "a", "--config", "b"]):
        assert message(*argv) == "--config takes the path of one YAML file, and is given once"


def test_flags_win_over_the_file_wherever_they_stand(write):
    path = write("lbd: 1\npredictors: 2\nlora: true\nobjective: regular\n")
    want = Options(lbd=5.0, predictors=2, lora=False, objective="step_jepa")
    argv = ["--lbd", "5", "--no_lora", "--step_jepa"]
    parser = StrictParser((Options, Trainer), aliases=ALIASES)
    for place in range(3):
        line = [*argv[: place + (place > 0)], f"--config={path}", *argv[place + (place > 0) :], "--output_dir", "o"]
        assert parser.parse(line)[0] == want
    assert parser.explicit == {"lbd", "predictors", "lora", "objective", "output_dir"}


def test_aliases_in_the_file(write):
    path = write("batch_size: 4\nregular: true\ninfonce: false\nuse_lora: true\ndebug: 5\nsteps: 9\n")
    options, trainer = parse_both("--config", path)
    assert options == Options(objective="regular", lora=True)
    assert trainer == Trainer("out", False, per_device_train_batch_size=4, verbosity=5, max_steps=9)
    assert parse_both("--config", write("debug: under\n"))[1].debug == "under"
    assert message("--config", write("\nbatch_size: x\n"), call=parse_both) == (
        "run.yaml:2: batch_size: expected a whole number, got 'x'"
    )
    assert message("--config", write("regular:\n"), call=parse_both) == (
        "run.yaml:1: regular: expected true or false, got no value"
    )
    assert message("--config", write("lbd: 1\nregular: true\nobjective: llm_jepa\n"), call=parse_both) == (
        "run.yaml:2: regular sets objective to 'regular', but run.yaml:3: objective sets it to 'llm_jepa'; "
        "keep one of them"
    )


def test_training_arguments_refuse_what_they_do_not_know(write):
    from transformers import TrainingArguments

    def parse_arguments(*argv):
        return StrictParser(TrainingArguments).parse(["--output_dir", "o", "--use_cpu", *argv])

    def refused(*argv):
        return message(*argv, call=parse_arguments)

    assert refused("--larning_rate", "1") == "unknown flag --larning_rate; did you mean --learning_rate?"
    assert refused("--lr_scheduler_type", "cosin").endswith("got 'cosin'; did you mean 'cosine'?")
    assert refused("--log_level", "loud").startswith("--log_level: expected one of detail, debug, info")
    assert refused("--max_steps", "1e3") == "--max_steps: expected a whole number, got '1e3'"
    assert refused("--bf16", "--fp16") == refused("--fp16", "--bf16")  # the dataclass's own check
    assert (
        refused("--config", write("max_step: 5\n")) == "run.yaml:1: unknown key 'max_step'; did you mean 'max_steps'?"
    )
    assert parse_arguments("--fsdp", "true")[0].fsdp is parse_arguments("--fsdp")[0].fsdp
