"""``stepjepa demo``: train a small model with and without the JEPA objective on built-in data, and compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepjepa.config.parser import StrictParser
from stepjepa.study.demo_options import DemoOptions
from stepjepa.utils.text import escaped

if TYPE_CHECKING:
    from stepjepa.study.demo import ArmResult


def run(argv: list[str]) -> int:
    """Parse, run, print the table. Exit status 0."""
    parser = StrictParser(
        DemoOptions,
        prog="stepjepa demo",
        description="Train a small model with and without the JEPA objective on built-in data, and compare.",
        epilog="example: stepjepa demo --output_dir runs/demo --seed 1",
    )
    (options,) = parser.parse(argv)

    from stepjepa.study.demo import run_demo

    results = run_demo(options)
    show(results, options)
    return 0


def show(results: dict[str, ArmResult], options: DemoOptions) -> None:
    """The table, the collapse signs, and what they do and do not say."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from stepjepa.evaluation.intervals import paired_counts, paired_difference, percent

    console = Console()
    if not console.is_terminal:
        console = Console(width=100)
    table = Table(title=f"{options.test_rows} held-out problems, seed {options.seed}", box=box.SIMPLE_HEAD)
    for head in ("arm", "accuracy", "LM loss", "JEPA loss", "cosine", "examples/s", "time"):
        table.add_column(head, justify="left" if head == "arm" else "right", no_wrap=True)
    for arm, r in results.items():
        jepa = "-" if r.jepa_loss is None else f"{r.jepa_loss:.4f}"
        cells = (
            f"{100 * r.accuracy:.1f} %",
            f"{r.lm_loss:.4f}",
            jepa,
            f"{r.cosine:.4f}",
            f"{r.examples_per_second:.0f}",
        )
        table.add_row(arm, *cells, f"{r.train_seconds:.0f} + {r.eval_seconds:.0f} s")
    console.print()
    console.print(table)
    signs = Table(title="collapse signs (held-out step 2 states)", box=box.SIMPLE_HEAD)
    for head in ("arm", "cosine", "shuffled", "target std", "effective rank", "answers that stop"):
        signs.add_column(head, justify="left" if head == "arm" else "right", no_wrap=True)
    for arm, r in results.items():
        geometry = (f"{r.cosine:.4f}", f"{r.shuffled_cosine:.4f}", f"{r.target_std:.3f}", f"{r.effective_rank:.1f}")
        signs.add_row(arm, *geometry, f"{100 * r.stopped:.1f} %")
    console.print(signs)
    folder = escaped(options.output_dir)
    found = paired_difference(*paired_counts(results["regular"].correct, results["step_jepa"].correct))
    console.print(
        f"step_jepa - regular: {percent(found, '+').replace(' %', ' points', 1)}, 95 % interval over the problems.\n"
        "One seed does not say whether JEPA helps: seeds differ by more than this, equal examples are not equal compute, "
        "and a gain that shuffled targets give as well is not JEPA's. 'regular' is read at the last token of step 1.\n"
        f"Written to {folder}: regular/ and step_jepa/ (models), metrics.json, curves.png\n"
        f"All of it on a page: stepjepa report {folder}",
        markup=False,
    )
