"""``stepjepa demo``: a study of one seed on generated problems, which ends with its report.

The studies are the recipes `demo` and `demo_path_star`. All arms share data, seed, initialisation, order and number of
examples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stepjepa.config.option import check_fields, option
from stepjepa.errors import StepJepaError
from stepjepa.study.spec import StudyOptions
from stepjepa.utils.terminal import say
from stepjepa.utils.text import PAGE, text_table, wrapped, written

if TYPE_CHECKING:
    from stepjepa.study.results import Tables

_RECIPES = {"arithmetic": "demo", "path_star": "demo_path_star"}


@dataclass
class DemoOptions:
    """Options of ``stepjepa demo``."""

    output_dir: str = option("runs/demo", "Folder for the study and report.html.", "demo")
    overwrite_output_dir: bool = option(False, "Remove what an earlier demo left in output_dir.", "demo")
    seed: int = option(0, "Seed of the data, the initialisation and the order.", "demo", at_least=0)
    task: str = option("arithmetic", "The built-in task.", "demo", choices=tuple(_RECIPES))
    train_rows: int | None = option(
        None, "Generated problems to train on, once each. Default: 16000 of arithmetic.", "demo", at_least=1
    )
    test_rows: int = option(300, "Held-out problems to evaluate on.", "demo", at_least=1)
    overrides: list[str] | None = option(
        None, "Values instead of the recipe's, as in base.learning_rate=1e-3.", "demo", aliases=("set",)
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
        return StudyOptions(_RECIPES[self.task], output_dir=self.output_dir, seeds=[self.seed], overrides=overrides)


@dataclass
class DemoResult:
    """The tables of the study, and its report; `str` of it is what the command prints.

    Attributes:
        answer: what may be concluded, as the report has it.
        page: the report.
    """

    folder: Path
    tables: Tables
    answer: list[str] = field(default_factory=list)
    page: Path | None = None

    def __str__(self) -> str:
        tables = list(self.tables.values())
        heads = ["", *(arm.name for arm in tables[0].arms)]
        rows = [[table.metric, *(written(arm.summary.estimate, ".4f") for arm in table.arms)] for table in tables]
        lines = text_table(heads, rows)
        for paragraph in self.answer:
            lines.append("")
            for line in paragraph.splitlines():  # the numbers, then what they mean
                lines += wrapped(line, PAGE)
        lines += ["", f"written to {self.folder}: the data, the models, their answers, and the tables"]
        if self.page is not None:
            lines.append(f"all of it on a page: {self.page}")
        return "\n".join(lines)


def demo(options: DemoOptions) -> DemoResult:
    """Generate the data, train and score all arms, and write the tables.

    Raises:
        ConfigError: the folder holds something else.
        StepJepaError: an arm failed.
    """
    # They load torch, which --help does not need.
    from stepjepa.study.reading import read_options
    from stepjepa.study.run import run_study

    study = read_options(options.study)
    say(f"{study.title}; the logs of training: {study.output_dir}/runs/*/seed-{options.seed}/train.log")
    carried = run_study(study, say, options.overwrite_output_dir)
    tables, _ = carried.write_results()
    for item in carried.failed:
        raise StepJepaError(f"{item.run.name} failed: {item.error}")
    return DemoResult(study.output_dir, tables)
