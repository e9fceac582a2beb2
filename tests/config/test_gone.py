"""Values that an option no longer takes: each is answered with what replaces it, as a flag and from Python."""

import pytest

from stepjepa.analysis.options import AnalyzeOptions
from stepjepa.config.gone import GONE
from stepjepa.config.option import check_fields, options_of
from stepjepa.config.parser import StrictParser
from stepjepa.data.options import StepsOptions
from stepjepa.data.prepare.options import PrepareOptions
from stepjepa.errors import ConfigError
from stepjepa.study.spec import ProblemRows

TAKERS = (PrepareOptions, StepsOptions, AnalyzeOptions, ProblemRows)
CASES = [
    (kind, option, value) for kind in TAKERS for option in GONE if option in options_of(kind) for value in GONE[option]
]


def test_every_option_of_the_table_is_an_option():
    assert {option for _, option, _ in CASES} == set(GONE)


@pytest.mark.parametrize(("kind", "option", "value"), CASES)
def test_the_answer_names_what_replaces_the_value(kind, option, value):
    with pytest.raises(ConfigError) as by_flag:
        StrictParser(kind).values([f"--{option}", value])
    with pytest.raises(ConfigError) as from_python:
        check_fields(kind(**{option: [value] if options_of(kind)[option].many else value}), kind)
    for error in (by_flag, from_python):
        assert f"{value} is gone; {GONE[option][value]}" in str(error.value)
        assert "\n" not in str(error.value)
