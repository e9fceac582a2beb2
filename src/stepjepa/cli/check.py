"""stepjepa check FILE

Check roles, texts and steps of a data file, and list unusable rows and warnings. With --model_name also report what a
model will see of it: pairs, truncation, tokens by kind.

example: stepjepa check train.jsonl --model_name mini --step_jepa --eval_file test.jsonl
"""

from __future__ import annotations

from stepjepa.api import check
from stepjepa.cli import needed_file
from stepjepa.config.parser import StrictParser
from stepjepa.config.spellings import published
from stepjepa.inspect.check import CheckOptions
from stepjepa.utils.terminal import print_drawn, print_json


def run(argv: list[str]) -> int:
    """Check a file; exit status 0 where it can be used."""
    values = StrictParser((CheckOptions,), __doc__, aliases=published(CheckOptions), positional=("file",)).values(argv)
    as_json = values.pop("json", False)
    report = check(needed_file(values.pop("file", None), "check"), values.pop("model_name", None), **values)
    if as_json:
        print_json(report.to_dict())
    else:
        print_drawn(str(report))
    return 0
