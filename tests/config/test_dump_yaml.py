"""dump_yaml: what it writes parses back to equal options."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from stepjepa.config.parser import StrictParser
from stepjepa.config.yaml_file import dump_yaml
from support.options import ALIASES, Color, Options, Trainer

HARD = Options(
    step_separator="\n\n", train_file="none", target_encoder="none", jepa_ratio=1e-5, lbd=float("inf"), lora=True,
    layers=[], modules=["none", "1e-5", "true", "a: b", "", " x ", "#", "é", "\u2028", "'", '"', "010", "1:30"],
    report_to=["none"], kwargs={"a": "1e-5", "b": {"c": [1, 2.5, None, "no", "null"]}, "d": -3, "e": True, "f": "~"},
    switches={"rope": True}, color=Color.BLUE, color_name="red", seen="true", space=False, folder=Path("a b"),
)  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        HARD,
        Options(report_to=None, space="false", seen=True, kwargs="x.json", train_file="~", lbd=-1e-30, horizon=0),
        Options(step_separator="null", train_file="NULL", kwargs="{not json"[1:], level="debug", layers=[0]),
        Options(step_separator="- a\n  b\n\n", train_file="on", seen="5", space="1e5"),
    ],
)
def test_a_dump_parses_back(options, tmp_path):
    path = tmp_path / "made" / "resolved.yaml"
    assert dump_yaml(options, path) == []
    assert StrictParser(Options).parse(["--config", str(path)]) == (options,)
    first = path.read_text()
    dump_yaml([options], path)  # the same, with a list, over an existing file
    assert path.read_text() == first
    assert os.listdir(path.parent) == ["resolved.yaml"]


def test_what_a_dump_holds(tmp_path):
    path = tmp_path / "r.yaml"
    options = Options(plugin=Options(), jepa_ratio=None)
    assert dump_yaml((options, Trainer("o", True)), path, header="Repeat with\n--config r.yaml") == ["plugin"]
    text = path.read_text()
    assert text.startswith("# Repeat with\n# --config r.yaml\nobjective: step_jepa\n")
    assert "\njepa_ratio" not in text and "plugin" not in text and "derived" not in text
    assert 'step_separator: "\\n\\n"\n' in text and "output_dir: o\nverbose: true\n" in text
    got = StrictParser((Options, Trainer), aliases=ALIASES).parse(["--config", str(path)])
    assert got == (dataclasses.replace(options, plugin=None), Trainer("o", True))


def test_a_dump_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "r.yaml"
    dump_yaml(Options(lbd=1.0), path)
    before = path.read_text()

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        dump_yaml(Options(lbd=2.0), path)
    assert path.read_text() == before and os.listdir(tmp_path) == ["r.yaml"]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "argv",
    [
        [],
        [
            *["--batch_size", "3", "--learning-rate", "1e-5", "--lr_scheduler_type", "cosine", "--save_strategy", "no"],
            *["--report_to", "none", "--gradient_checkpointing", "--gradient_checkpointing_kwargs"],
            *[
                '{"use_reentrant": false}',
                "--logging_steps",
                "0.5",
                "--no_dataloader_pin_memory",
                "--warmup_steps",
                "5",
            ],
            *["--eval_strategy", "epoch", "--include_num_input_tokens_seen", "all", "--label_names", "a", "b"],
            *["--accelerator_config", '{"even_batches": false}', "--debug", "underflow_overflow"],
            *["--resume_from_checkpoint", "true", "--hub_token", "secret", "--tf32", "none"],
        ],
    ],
)
def test_training_arguments(argv, tmp_path):
    from stepjepa.training.config import JEPAConfig

    parser = StrictParser(JEPAConfig, aliases={"batch_size": "per_device_train_batch_size"})
    (args,) = parser.parse(["--output_dir", str(tmp_path / "run"), "--use_cpu", *argv])
    if argv:
        assert (args.per_device_train_batch_size, args.learning_rate, args.save_strategy) == (3, 1e-5, "no")
        assert args.lr_scheduler_type.value == "cosine" and args.report_to == [] and args.label_names == ["a", "b"]
        assert args.gradient_checkpointing_kwargs == {"use_reentrant": False}
        assert args.accelerator_config.even_batches is False and args.debug[0].value == "underflow_overflow"
    path = tmp_path / "resolved.yaml"
    assert dump_yaml(args, path) == []
    assert "secret" not in path.read_text() and "local_rank" not in path.read_text()
    (again,) = parser.parse(["--config", str(path)])
    for name, option in parser.options.items():
        if option.dumped and not option.secret:
            assert getattr(again, name) == getattr(args, name), name
    assert {name for name, option in parser.options.items() if not option.dumped} == {
        *("local_rank", "overwrite_output_dir", "resume_from_checkpoint"),
    }
    assert parser.format_help().count("\n  --") > 100
