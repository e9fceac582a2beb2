"""stepjepa doctor

What this machine can do, to run first and to add to a bug report: versions and devices; for every attention and dtype
whether it is exact, the time and memory of a training step; the flags to take. Nothing is kept.

example: stepjepa doctor --model_name mini --data train.jsonl
"""

from __future__ import annotations

from dataclasses import asdict

from stepjepa.api import doctor
from stepjepa.config.option import Names
from stepjepa.config.parser import StrictParser
from stepjepa.training.options import DoctorOptions
from stepjepa.utils.terminal import print_json, print_text


def run(argv: list[str]) -> int:
    """Print what was found. Exit status 0."""
    values = StrictParser((DoctorOptions,), __doc__, aliases={"data": Names(DoctorOptions).train_file}).values(argv)
    as_json = values.pop("json", False)
    found = doctor(**values)
    if as_json:
        print_json(asdict(found))
    else:
        print_text(str(found))
    return 0
