"""The public functions take the options of their commands by name, and packages named as commands can be called."""

import subprocess
import sys
from pathlib import Path

import pytest

import stepjepa
from stepjepa import api
from stepjepa.cli.main import COMMANDS
from stepjepa.errors import ConfigError, DataError


@pytest.mark.parametrize("name", sorted({*COMMANDS} - {"check", "inspect"}))
def test_options_by_name(name):
    given = ["checkpoint", "out"] if name == "export" else []
    with pytest.raises(ConfigError, match="unknown option 'overwrite_output_dirr'"):
        getattr(stepjepa, name)(*given, overwrite_output_dirr=True)


def test_a_text_is_no_list_and_a_path_is_a_text():
    with pytest.raises(ConfigError, match="eval_metrics is 'exact'; it must be a list"):
        stepjepa.train(eval_metrics="exact")
    with pytest.raises(DataError, match="missing.jsonl: no such file"):
        stepjepa.train(train_file=[Path("./missing.jsonl")], model_name=Path("tiny"))


def test_what_is_public():
    public = {"JEPAConfig", "JEPATrainer", "RowView", "__version__", "show_row"}
    assert set(stepjepa.__all__) == {*public, *COMMANDS, "compare"} == {*public, *api.__all__} <= set(dir(stepjepa))
    with pytest.raises(AttributeError, match="no attribute 'JEPAConfg'"):
        stepjepa.JEPAConfg  # noqa: B018
    assert all(getattr(stepjepa, name) is getattr(api, name) for name in api.__all__)


def test_a_command_is_a_function_also_where_a_package_has_its_name():
    code = "import stepjepa; from stepjepa.report import *; assert callable(stepjepa.report)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
