"""The description of a study (arms, seeds, controls, data splits, metrics), its runs, and the options of the command.

Importing this module does not load torch, so that ``--help`` is quick.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from stepjepa.config.option import Names, Values, check_fields, option
from stepjepa.data.tasks import TASKS
from stepjepa.training.options import RunOptions, TrainerOptions
from stepjepa.utils.text import counted

Executor = Literal["processes", "slurm", "local", "ray"]
SAME_FLOP = "same_flop"
SPLITS = ("train", "select", "test")
_TRAIN = Names(RunOptions, TrainerOptions)


@dataclass
class StudyOptions:
    """Options of ``stepjepa study``; some of them override a value in the study's file."""

    file: str | None = option(
        None, "A study's YAML file, or a recipe's name; usually written without --file.", "study"
    )
    output_dir: str | None = option(
        None, "Folder for the runs and tables. Default: the file's, or runs/NAME.", "study"
    )
    seeds: list[int] | None = option(None, "Seeds that replace the file's.", "study")
    jobs: int | None = option(
        None,
        "Number of runs at a time. Default: the file's, or 1 (100 with slurm or ray).",
        "study",
    )
    executor: Executor | None = option(
        None,
        "Where runs execute: processes on this machine (the default), slurm, ray, or local (submitit, which slurm uses, "
        "without a cluster).",
        "study",
    )
    stop_after: float | None = option(
        None, "Minutes after which the study stops; the next start resumes it.", "study", above=0
    )
    records: str | None = option(
        None,
        "JSONL file of runs, like results.jsonl: runs in it are not repeated, and new ones are added.",
        "study",
    )
    overrides: list[str] | None = option(
        None, "Values that replace the file's, as in base.max_steps=20.", "study", aliases=("set",)
    )
    mini: bool = option(
        False,
        "Run the file's `mini` section: a small version of the study, for two cores.",
        "study",
    )
    dry_run: bool = option(
        False, "List the runs and what each one changes, and write nothing.", "study"
    )
    recipes: bool = option(
        False, "List the recipes that come with the library.", "study", aliases=("list",)
    )
    overwrite_output_dir: bool = option(
        False, "Remove what an earlier study left in output_dir and start again.", "study"
    )


_DEMOS = {"arithmetic": "demo", "path_star": "demo_path_star"}


@dataclass
class DemoOptions:
    """Options of ``stepjepa demo``."""

    output_dir: str = option("runs/demo", "Folder for the study and report.html.", "demo")
    overwrite_output_dir: bool = option(
        False, "Remove what an earlier demo left in output_dir.", "demo"
    )
    seed: int = option(
        0, "Seed of the data, the initialisation and the order of examples.", "demo", at_least=0
    )
    task: str = option("arithmetic", "The built-in task.", "demo", choices=tuple(_DEMOS))
    train_rows: int | None = option(
        None,
        "Number of generated problems, each trained on once. Default: 16000 for arithmetic.",
        "demo",
        at_least=1,
    )
    test_rows: int = option(300, "Number of held-out problems to score.", "demo", at_least=1)
    overrides: list[str] | None = option(
        None,
        "Values that replace the recipe's, as in base.learning_rate=1e-3.",
        "demo",
        aliases=("set",),
    )

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def study(self) -> StudyOptions:
        """The options of ``stepjepa study`` that do the same."""
        overrides = [f"data.builtin.seed={self.seed}", f"data.builtin.test_rows={self.test_rows}"]
        if self.train_rows is not None:
            overrides.append(f"data.builtin.train_rows={self.train_rows}")
        overrides += self.overrides or []
        return StudyOptions(
            _DEMOS[self.task],
            output_dir=self.output_dir,
            seeds=[self.seed],
            overrides=overrides,
            overwrite_output_dir=self.overwrite_output_dir,
        )


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        name: letters, digits and ``_ . , = -``; it names a folder.
        settings: options of ``stepjepa train`` that differ from the base's.
        cells: combinations of hyper-parameters that the validation split chooses among; one empty cell if none is tuned.
        jepa: whether the arm trains with pairs, and so has targets to shuffle.
        variants: runs in addition to those of the arm itself: ``shuffled``, ``random``, ``same_flop``.
        control_arm: another arm of the study, like this one but with shuffled targets; used if there is no ``shuffled``
            variant.
    """

    name: str
    settings: Values
    cells: tuple[Values, ...] = ({},)
    jepa: bool = False
    variants: tuple[str, ...] = ()
    control_arm: str | None = None

    @property
    def tuned(self) -> bool:
        """Whether the validation split chooses among cells."""
        return len(self.cells) > 1

    @property
    def rows(self) -> dict[str, str]:
        """Variant ("" is the arm itself) -> its row of the table, as in ``step_jepa+shuffled``."""
        return {
            variant: f"{self.name}+{variant}" if variant else self.name
            for variant in ("", *self.variants)
        }


@dataclass(frozen=True)
class MetricSpec:
    """A metric with its options and its direction."""

    name: str
    options: Values = field(default_factory=dict)
    higher_is_better: bool = True


@dataclass(frozen=True)
class Data:
    """Where the rows come from.

    Attributes:
        builtin: fields of `ProblemRows` and options of its task; None if the rows come from files.
        files: split (`SPLITS`) -> its files or Hub data sets; empty for the built-in problems.
        splits: split -> its name in a Hub data set.
    """

    builtin: Values | None = None
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    splits: Mapping[str, str] = field(default_factory=dict)

    def paths(self, folder: Path) -> dict[str, tuple[str, ...]]:
        """Split -> files of a study in `folder`. Blocks with equal options share its built-in problems."""
        if self.builtin is None:
            return dict(self.files)
        options = "-".join(f"{key}={value}" for key, value in sorted(self.builtin.items()))
        problems = folder / "data" / f"builtin-{re.sub(r'[^a-zA-Z0-9=_.-]', '', options)}"
        return {split: (str(problems / f"{split}.jsonl"),) for split in SPLITS}


def evaluates_on_the_way(settings: Values) -> bool:
    """Whether a run with these training options evaluates on the study's validation split while it trains."""
    return str(settings.get(_TRAIN.eval_strategy, "no")) != "no" and not settings.get(
        _TRAIN.eval_file
    )


@dataclass(frozen=True)
class ProblemRows:
    """The built-in task, the number of rows in each split, and their seed."""

    task: str = option("arithmetic", "The task.", "data", choices=tuple(TASKS))
    train_rows: int = option(4000, "Rows to train on.", "data", at_least=1)
    select_rows: int = option(200, "Rows to choose hyper-parameters on.", "data", at_least=1)
    test_rows: int = option(300, "Rows to score on.", "data", at_least=1)
    seed: int = option(0, "Seed of the problems.", "data", at_least=0)


@dataclass(frozen=True)
class Scoring:
    """How a trained model is scored: number of rows, batch size, and length of answers."""

    max_examples: int | None = option(None, "Score only the first N rows.", "evaluate", at_least=1)
    batch_size: int = option(
        32, "Rows per batch, in generation and forward passes.", "evaluate", at_least=1
    )
    max_new_tokens: int = option(256, "Longest answer in tokens.", "evaluate", at_least=1)


@dataclass(frozen=True)
class Block:
    """Arms that are compared with one baseline. A study has several blocks if models or data sets differ.

    Attributes:
        name: empty if the study has one block only.
        base: options of ``stepjepa train`` that all arms share.
        select: the metric that chooses among cells, and whether its highest value wins.
        tune_seeds: seeds of the runs that choose a cell; only the chosen cell is run with `seeds`. Empty if the cell is
            chosen by the runs of `seeds` themselves.
    """

    name: str
    base: Values
    arms: tuple[Arm, ...]
    baseline: str
    seeds: tuple[int, ...]
    data: Data
    metrics: tuple[MetricSpec, ...]
    select: tuple[str, bool]
    evaluation: Scoring
    tune_seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Study:
    """A complete study.

    Attributes:
        shows, source: the question in one sentence, and where its answer was published.
        slurm, ray: parameters of the jobs.
        notes: remarks for the author of the file, such as an option without effect.
    """

    title: str
    output_dir: Path
    blocks: tuple[Block, ...]
    shows: str = ""
    source: str = ""
    jobs: int = option(1, "Runs at a time.", "study", at_least=1)
    executor: Executor = "processes"
    slurm: dict[str, Any] = field(default_factory=dict)
    ray: dict[str, Any] = field(default_factory=dict)
    keep_models: bool = option(True, "False deletes the weights once they are scored.", "study")
    alpha: float = option(0.05, "Level of the verdicts.", "study", above=0, below=1)
    solved: float | None = option(
        None,
        "Value of the first metric, on the test split, that a run must reach to have solved the task.",
        "study",
    )
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """One model to be trained and scored: an arm or its `variant`, with tuned hyper-parameters (`cell`) and a seed."""

    block: Block
    arm: Arm
    variant: str
    cell: Values
    seed: int

    @property
    def row(self) -> str:
        """Its row of the table."""
        return self.arm.rows[self.variant]

    @property
    def only_tunes(self) -> bool:
        """Whether the run only helps to choose a cell: it appears in no table and is not scored on the test split."""
        return self.arm.tuned and self.seed in self.block.tune_seeds

    @property
    def chooses(self) -> bool:
        """Whether the run's score on the validation split helps to choose a cell."""
        return self.only_tunes or (
            self.arm.tuned and not self.variant and not self.block.tune_seeds
        )

    @property
    def turn(self) -> int:
        """Rank in the order of runs: those that choose a cell first, then seed by seed."""
        return -1 if self.only_tunes else self.block.seeds.index(self.seed)

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{'/'.join(self.folder.parts[1:-1])} seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Its folder, relative to the study's output_dir."""
        parts = (self.block.name, self.row, cell_name(self.cell), f"seed-{self.seed}")
        return Path("runs", *(part for part in parts if part))

    @property
    def settings(self) -> dict[str, Any]:
        """All options of ``stepjepa train`` that the study sets, without the data and the folder."""
        settings = {**self.block.base, **self.changes, "seed": self.seed}
        for name, value in settings.items():
            # A run may start from the model that another study trained with the same seed.
            if isinstance(value, str):
                settings[name] = value.replace("{seed}", str(self.seed))
        return settings

    @property
    def changes(self) -> dict[str, Any]:
        """The settings that replace those of the base, without the seed."""
        return {**self.arm.settings, **self.cell, **varied(self.variant)}


def varied(variant: str) -> dict[str, Any]:
    """The option of ``stepjepa train`` by which a variant differs from its arm."""
    if variant == SAME_FLOP:
        return {SAME_FLOP: True}
    return {"control": variant} if variant else {}


def cell_name(cell: Values) -> str:
    """``learning_rate=0.001,lbd=0.5``, the name of a folder."""
    return ",".join(f"{name}={file_word(value)}" for name, value in cell.items())


def file_word(value: object) -> str:
    """A value as part of a file name."""
    if isinstance(value, (list, tuple)):
        return "-".join(map(file_word, value))
    return re.sub(r"[^\w.-]", "_", f"{value:g}" if isinstance(value, float) else str(value))


def runs_of(
    block: Block, arm: Arm, variant: str, cells: Sequence[Values], seeds: Sequence[int]
) -> list[Run]:
    """The runs of an arm or of its variant: cells x seeds."""
    return [Run(block, arm, variant, cell, seed) for cell in cells for seed in seeds]


def all_runs(study: Study) -> Iterator[Run]:
    """Every run of the study. A run whose cell is not chosen yet is listed with its first cell."""
    for block in study.blocks:
        for arm in block.arms:
            if arm.tuned and block.tune_seeds:
                yield from runs_of(block, arm, "", arm.cells, block.tune_seeds)
            for variant in arm.rows:
                waits = variant or block.tune_seeds
                yield from runs_of(
                    block, arm, variant, arm.cells[:1] if waits else arm.cells, block.seeds
                )


def possible_runs(study: Study) -> Iterator[Run]:
    """Every run that the study could contain, for any choice of cells."""
    for block in study.blocks:
        for arm in block.arms:
            for variant in arm.rows:
                yield from runs_of(
                    block, arm, variant, arm.cells, [*block.seeds, *block.tune_seeds]
                )


def describe(study: Study, is_done: Callable[[Run, str], bool]) -> Iterator[str]:
    """The lines of ``--dry_run``: the runs, the changes of each arm, and how the arms are judged.

    Args:
        is_done: from a run and its stage to whether the stage is done.
    """
    runs = list(all_runs(study))
    finished = 0
    for run in runs:
        if run.chooses:
            finished += is_done(run, "select")
        else:
            # The chosen cell may be another one than the cell in the list.
            finished += any(is_done(replace(run, cell=cell), "test") for cell in run.arm.cells)
    where = f"{study.jobs} at a time, executor {study.executor}"
    yield study.title
    yield f"{counted(len(runs), 'run')} in {study.output_dir}, {finished:,} of them finished; {where}"

    # For each block: what its arms share, then a line for every row of its table.
    counts = Counter((run.block.name, run.row) for run in runs)
    for block in study.blocks:
        metric, highest = block.select
        yield ""
        if block.name:
            yield f"block {block.name}"
        yield f"base       {assignments(block.base)}"
        yield f"seeds      {numbers(block.seeds)}"
        yield f"baseline   {block.baseline}"
        if any(arm.tuned for arm in block.arms):
            extreme = "highest" if highest else "lowest"
            seeds = numbers(block.tune_seeds or block.seeds)
            yield f"choice     the {extreme} {metric} of the validation split, over seeds {seeds}"
        yield f"data       {assignments(block.data.builtin or block.data.files)}"
        yield f"metrics    {', '.join(metric.name for metric in block.metrics)}"
        for arm in block.arms:
            for variant, row in arm.rows.items():
                changes = assignments(varied(variant) if variant else arm.settings) or "the base"
                tuned = (
                    f"; one of {', '.join(map(cell_name, arm.cells))}"
                    if arm.tuned and not variant
                    else ""
                )
                yield f"  {row}: {counted(counts[block.name, row], 'run')}, {changes}{tuned}"


def numbers(values: Sequence[int]) -> str:
    """``1 2 3``."""
    return " ".join(map(str, values))


def assignments(values: Values) -> str:
    """``lbd=0.1 predictors=2``."""
    return " ".join(f"{name}={value}" for name, value in values.items())
