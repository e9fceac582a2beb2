"""Options of ``stepjepa study`` and ``stepjepa demo``; importing them loads no torch, so that ``--help`` is quick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stepjepa.config.option import check_fields, option


@dataclass
class StudyOptions:
    """Options of ``stepjepa study``; most of them replace what the study's file says."""

    file: str | None = option(None, "A study's YAML file, or a recipe's name; usually written without --file.", "study")
    output_dir: str | None = option(
        None, "Folder for runs, tables and figures. Default: the file's, or runs/NAME.", "study"
    )
    seeds: list[int] | None = option(None, "Seeds instead of the file's.", "study")
    jobs: int | None = option(None, "Runs at a time. Default: the file's, or 1 (100 with slurm).", "study")
    executor: Literal["processes", "slurm", "local"] | None = option(
        None,
        "Where runs are carried out: processes on this machine (the default), slurm, or local, which runs on this machine "
        "what slurm runs on a cluster.",
        "study",
    )
    overrides: list[str] | None = option(
        None, "Values instead of the file's, as in base.max_steps=20.", "study", aliases=("set",)
    )
    mini: bool = option(False, "Run the file's section mini: the same study made small, for two cores.", "study")
    dry_run: bool = option(False, "List the runs and what each changes, and write nothing.", "study")
    recipes: bool = option(False, "List the recipes that come with the library.", "study", aliases=("list",))
    overwrite_output_dir: bool = option(
        False, "Remove what an earlier study left in output_dir and start again.", "study"
    )


@dataclass
class DemoOptions:
    """Options of ``stepjepa demo``. The defaults were chosen on `regular` alone (docs/demo.md)."""

    output_dir: str = option("runs/demo", "Folder for both models, metrics.json and curves.png.", "demo")
    overwrite_output_dir: bool = option(False, "Remove what an earlier demo left in output_dir.", "demo")
    seed: int = option(0, "Seed of the data, the initialisation and the order.", "demo")
    train_rows: int = option(16_000, "Generated problems to train on, once each.", "demo", at_least=1)
    test_rows: int = option(300, "Held-out problems to evaluate on.", "demo", at_least=1)
    batch_size: int = option(8, "Examples an optimizer step.", "demo", at_least=1)
    learning_rate: float = option(2e-3, "Peak learning rate of both arms.", "demo")
    predictors: int = option(2, "K, predictor tokens of the step_jepa arm.", "demo")
    lbd: float = option(0.1, "lambda of the step_jepa arm.", "demo")

    def __post_init__(self) -> None:
        check_fields(self)
