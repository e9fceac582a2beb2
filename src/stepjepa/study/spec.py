"""What a study is: a base configuration, arms, seeds, controls, data splits, metrics, and how runs are started.

`reading.read_study` makes one from a YAML file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Values = Mapping[str, Any]
CONTROLS = ("shuffled", "random")
SAME_FLOP = "same_flop"
SPLITS = ("train", "select", "test")
EXECUTORS = ("processes", "slurm", "local")


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        name: letters, digits and ``_ . , = -``; it names a folder.
        settings: fields of ``stepjepa train`` that differ from the base's.
        cells: values of the hyper-parameters that the validation split chooses among; one empty cell where none are tuned.
        jepa: whether it trains with pairs, so that there are targets to shuffle.
        variants: what is run beside it: ``shuffled``, ``random``, ``same_flop``.
        control_arm: another arm of the study that stands for this one with shuffled targets, where there is no variant.
    """

    name: str
    settings: Values
    cells: tuple[Values, ...] = ({},)
    jepa: bool = False
    variants: tuple[str, ...] = ()
    control_arm: str | None = None


@dataclass(frozen=True)
class MetricSpec:
    """A metric, its options, and its direction."""

    name: str
    options: Values = field(default_factory=dict)
    higher_is_better: bool = True


@dataclass(frozen=True)
class Data:
    """The splits: files or Hub data sets, and the splits of the latter; or how to generate them.

    Attributes:
        builtin: options of the built-in problems, None for files.
        train: files to train on.
        select, test: for the choice of hyper-parameters, and for the table.
        splits: of Hub data sets, by `SPLITS`.
    """

    builtin: Values | None = None
    train: tuple[str, ...] = ()
    select: str | None = None
    test: str = ""
    splits: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """How a trained model is scored."""

    max_examples: int | None = None
    batch_size: int = 32
    max_new_tokens: int = 256


@dataclass(frozen=True)
class Block:
    """Arms that are compared with one baseline. A study has several where models or data sets differ.

    Attributes:
        name: empty where there is one only.
        base: fields of ``stepjepa train`` that all arms share.
        select: the metric that chooses among cells, and whether its highest value wins.
    """

    name: str
    base: Values
    arms: tuple[Arm, ...]
    baseline: str
    seeds: tuple[int, ...]
    data: Data
    metrics: tuple[MetricSpec, ...]
    select: tuple[str, bool]
    evaluation: Evaluation

    def arm(self, name: str) -> Arm:
        """The arm of that name; there must be one."""
        return next(arm for arm in self.arms if arm.name == name)


@dataclass(frozen=True)
class Study:
    """A whole study.

    Attributes:
        shows: what it is to show, in a sentence.
        jobs: runs at a time.
        executor: ``processes`` of this machine, ``slurm``, or ``local``: what slurm would run, on this machine.
        slurm: parameters of the jobs.
        keep_models: False deletes the weights once they are scored.
        alpha: level of the verdicts.
        notes: what the reader of the file should know.
    """

    title: str
    output_dir: Path
    blocks: tuple[Block, ...]
    shows: str = ""
    jobs: int = 1
    executor: Literal["processes", "slurm", "local"] = "processes"
    slurm: Values = field(default_factory=dict)
    keep_models: bool = True
    alpha: float = 0.05
    notes: tuple[str, ...] = ()
