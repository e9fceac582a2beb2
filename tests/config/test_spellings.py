"""Names that people bring from transformers 4 and TRL: each is an option, stands for one, or is answered.

On the command line, in YAML and in Python alike.
"""

from __future__ import annotations

import dataclasses

import pytest
import transformers

import stepjepa
from stepjepa.config.parser import Answer, StrictParser
from stepjepa.config.spellings import published
from stepjepa.config.values import nearest
from stepjepa.errors import ConfigError
from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import RunOptions
from stepjepa.training.trainer import JEPATrainer

# What some names stand for that are no options here; the others have an answer, or another name for the same values.
MEANINGS = {
    "warmup_ratio 0.1": {"warmup_steps": 0.1},
    "evaluation_strategy steps": {"eval_strategy": "steps"},
    "no_cuda true": {"use_cpu": True},
    "adafactor true": {"optim": "adafactor"},
    "adafactor false": {},
    "group_by_length true": {"train_sampling_strategy": "group_by_length"},
    "model_name_or_path m": {"model_name": "m"},
    "chat_template_path a.jinja": {"chat_template": "a.jinja"},
    "dataset_name d": {"train_file": ["d"]},
    "dataset_test_split t": {"eval_split": "t"},
    "dataset_streaming true": {"streaming": True},
    "max_seq_length 512": {"max_length": 512},
    "assistant_only_loss true": {"labels": "assistant"},
    "assistant_only_loss false": {"labels": "all"},
    "save_safetensors true": {},
    "loss_type nll": {},
    # Those that left, as an older resolved.yaml has them.
    "allow_code_execution false": {},
    "engine processes": {},
}
# What a `JEPAConfig` refuses, alone or here.
NOT_ALONE = {"streaming", "chat_template"}


@pytest.fixture(scope="module")
def parser():
    types = (RunOptions, JEPAConfig)
    return StrictParser(types, aliases=published(*types), positional=("train_file",))


def in_python(name, value, fields=()):
    """The values of these fields where a dataclass is made with a name."""
    given = {"true": True, "false": False}.get(value, value)
    if name in published(JEPAConfig):
        config = JEPAConfig(**{name: given})
        return {field: getattr(config, field) for field in fields}
    return stepjepa.train(**{name: given})


@pytest.mark.parametrize("case", MEANINGS)
def test_the_meaning_is_the_same_everywhere(case, parser, tmp_path):
    name, value = case.split()
    if name in parser.options:
        pytest.skip("it is an option of the installed version of transformers")
    file, meaning = tmp_path / "run.yaml", MEANINGS[case]
    file.write_text(f"{name}: {value}\n")
    assert parser.values([f"--{name}", value]) == parser.values(["--config", str(file)]) == meaning
    if name in published(JEPAConfig) and not NOT_ALONE & set(meaning):
        assert in_python(name, value, meaning) == meaning


def test_the_answer_is_the_same_everywhere(parser, tmp_path):
    file = tmp_path / "run.yaml"
    answers = {name: answer for name, answer in parser.aliases.items() if isinstance(answer, Answer)}
    assert len(answers) > 50 and {"packing", "model_init_kwargs", "allow_code_execution"} <= set(answers)
    # In transformers 5.12, logging_dir is still an option.
    for name in answers.keys() - parser.options.keys():
        answer = answers[name]
        file.write_text(f"{name}: something\n")
        ways = {
            f"--{name}: ": lambda name=name: parser.values([f"--{name}", "something"]),
            f"{file}:1: {name}: ": lambda: parser.values(["--config", str(file)]),
            f"{name}: ": lambda name=name: in_python(name, "something"),
        }
        for begin, way in ways.items():
            with pytest.raises(ConfigError) as caught:
                way()
            message = str(caught.value)
            assert message.startswith(begin) and str(answer) in message, message
            assert "did you mean" not in message and "unknown" not in message
            assert len(message) - len(begin) < 175


def test_every_field_of_trls_configurations_is_known(parser):
    trl = pytest.importorskip("trl")
    names = {
        field.name
        for kind in (trl.SFTConfig, trl.ModelConfig, trl.ScriptArguments)
        for field in dataclasses.fields(kind)
    }
    assert names - parser.options.keys() - parser.aliases.keys() == set()


def test_two_names_that_disagree(parser):
    with pytest.raises(ConfigError, match="--warmup_ratio sets warmup_steps to 0.1, but --warmup_steps sets it to 7"):
        parser.values("--warmup_ratio 0.1 --warmup_steps 7".split())
    with pytest.raises(ConfigError, match="below 1"):
        parser.values("--warmup_ratio 1".split())
    with pytest.raises(ConfigError, match="use_cpu sets use_cpu to False, but no_cuda sets it to True"):
        JEPAConfig(use_cpu=False, no_cuda=True)
    assert dataclasses.replace(JEPAConfig(warmup_ratio=0.25), seed=3).warmup_steps == 0.25


def test_an_argument_that_is_refused():
    with pytest.raises(ConfigError, match="does not take formatting_func: rows are chats; write them as messages"):
        JEPATrainer("tiny", JEPAConfig(), [], formatting_func=str)


def test_what_a_slip_is():
    known = ["warmup_steps", "lbd_warmup_ratio", "eval_file", "train.jsonl", "llm_jepa", "model_name"]
    slips = "warmup_step wramup_steps lbd-warmup-ratios evalfile trian.jsonl Model_Name".split()
    assert [nearest(name, known) for name in slips] == [known[index] for index in (0, 0, 1, 2, 3, 5)]
    others = ("train_file", "test.jsonl", "jepa", "model", "", "_")
    assert not any(nearest(name, known) for name in others)


def test_every_training_argument_is_an_option(parser):
    assert {field.name for field in dataclasses.fields(transformers.TrainingArguments)} <= set(parser.options)
