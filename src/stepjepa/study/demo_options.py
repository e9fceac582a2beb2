"""The demo's options, apart from the demo so that ``--help`` loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

from stepjepa.config.option import check_at_least, option

ARMS = ("regular", "step_jepa")
_GROUP = "demo"


@dataclass
class DemoOptions:
    """Options of ``stepjepa demo``. The defaults were chosen on `regular` alone (docs/demo.md)."""

    output_dir: str = option("runs/demo", "Folder for both models, metrics.json and curves.png.", _GROUP)
    overwrite_output_dir: bool = option(False, "Remove what an earlier demo left in output_dir.", _GROUP)
    seed: int = option(0, "Seed of the data, the initialisation and the order.", _GROUP)
    train_rows: int = option(16_000, "Generated problems to train on, once each.", _GROUP)
    test_rows: int = option(300, "Held-out problems to evaluate on.", _GROUP)
    batch_size: int = option(8, "Examples an optimizer step.", _GROUP)
    learning_rate: float = option(2e-3, "Peak learning rate of both arms.", _GROUP)
    predictors: int = option(2, "K, predictor tokens of the step_jepa arm.", _GROUP)
    lbd: float = option(0.1, "lambda of the step_jepa arm.", _GROUP)

    def __post_init__(self) -> None:
        check_at_least(self, {"train_rows": 1, "test_rows": 1, "batch_size": 1})
