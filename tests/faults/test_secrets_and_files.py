"""Secrets stay in memory; files are readable like any other, and nothing is written through a link that lies in wait."""

import copy

import pytest

from stepjepa.cli.main import main
from stepjepa.errors import ConfigError
from stepjepa.study.reading import read_training
from stepjepa.study.tree import parse_tree
from stepjepa.training.config import JEPAConfig

TOKEN = "hf_verysecretindeed"


def test_a_copy_keeps_the_token_of_the_hub(tmp_path):
    """That no file of a run has the token is in tests/modeling/test_card.py."""
    config = JEPAConfig(output_dir=str(tmp_path), hub_token=TOKEN)
    assert copy.deepcopy(config).hub_token == copy.copy(config).hub_token == TOKEN


def test_messages_and_studies_do_not_hold_it(tmp_path, capsys):
    words = ["--train_file", "rows.jsonl", "--hub_token", TOKEN, "again", "--output_dir", str(tmp_path)]
    assert main(["train", *words]) == 2
    said = capsys.readouterr()
    assert TOKEN not in said.err + said.out and "--hub_token takes one value" in said.err
    with pytest.raises(ConfigError, match=r"study.yaml:1: hub_token: .*HF_TOKEN") as caught:
        read_training(parse_tree(f"hub_token: {TOKEN}", "study.yaml").given)
    assert TOKEN not in str(caught.value)
