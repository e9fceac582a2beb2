"""stepjepa demo

Train a small model with and without the JEPA objective on a built-in task, and compare: a study that ends with its report.

example: stepjepa demo --output_dir runs/demo --seed 1
"""

from __future__ import annotations

from stepjepa.api import demo
from stepjepa.config.aliases import Answer
from stepjepa.config.option import Names
from stepjepa.config.parser import StrictParser
from stepjepa.study.demo import DemoOptions
from stepjepa.study.spec import Scoring
from stepjepa.training.options import JEPAOptions, TrainerOptions
from stepjepa.utils.terminal import print_text

# Flags of version 0.2 -> where the demo's study has the value.
_NAME = Names(TrainerOptions, JEPAOptions, Scoring)
_IN_STUDY = {
    _NAME.batch_size: f"base.{_NAME.per_device_train_batch_size}",
    _NAME.learning_rate: f"base.{_NAME.learning_rate}",
    _NAME.predictors: f"arms.step_jepa.{_NAME.predictors}",
    _NAME.lbd: f"arms.step_jepa.{_NAME.lbd}",
}


def run(argv: list[str]) -> int:
    """Run the demo and print its table. Exit status 0."""
    gone = {name: Answer("", f"write --set {key}=VALUE") for name, key in _IN_STUDY.items()}
    print_text(str(demo(**StrictParser((DemoOptions,), __doc__, aliases=gone).values(argv))))
    return 0
