"""stepjepa demo

Train a small model with and without the JEPA objective on a built-in task, and compare.

example: stepjepa demo --output_dir runs/demo --seed 1
"""

from __future__ import annotations

from stepjepa.api import demo
from stepjepa.config.parser import StrictParser
from stepjepa.study.demo import DemoOptions
from stepjepa.utils.terminal import print_text


def run(argv: list[str]) -> int:
    """Run the demo and print its table. Exit status 0."""
    print_text(str(demo(**StrictParser((DemoOptions,), __doc__).values(argv))))
    return 0
