"""``stepjepa study``: does an objective help? Paired seeds, controls, equal examples and equal compute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stepjepa.cli.check import folded
from stepjepa.config.option import option
from stepjepa.config.parser import StrictParser
from stepjepa.errors import ConfigError
from stepjepa.utils.failures import explaining
from stepjepa.utils.terminal import print_error, print_text

if TYPE_CHECKING:
    from stepjepa.study.spec import Study

_GROUP = "study"
_NEEDED = ("scipy", "statsmodels", "matplotlib")


@dataclass
class StudyOptions:
    """Options of ``stepjepa study``; all but the first stand in the file as well, or concern one start only."""

    file: str | None = option(None, "A study's YAML file, or a recipe's name; usually written without --file.", _GROUP)
    output_dir: str | None = option(
        None, "Folder for runs, tables and figures. Default: the file's, or runs/NAME.", _GROUP
    )
    seeds: list[int] | None = option(None, "Seeds in place of the file's.", _GROUP)
    jobs: int | None = option(None, "Runs at a time. Default: the file's, or 1 (100 with slurm).", _GROUP)
    executor: Literal["processes", "slurm", "local"] | None = option(
        None,
        "Where runs are carried out: processes of this machine (the default), slurm, or local, which does on this machine "
        "what slurm does on a cluster.",
        _GROUP,
    )
    overrides: list[str] | None = option(
        None, "Values in place of the file's, as in base.max_steps=20.", _GROUP, aliases=("set",)
    )
    mini: bool = option(False, "Run the file's section mini: the same study made small, for two cores.", _GROUP)
    dry_run: bool = option(False, "List the runs and what each changes, and write nothing.", _GROUP)
    recipes: bool = option(False, "List the recipes that come with the library.", _GROUP, aliases=("list",))
    overwrite_output_dir: bool = option(
        False, "Remove what an earlier study left in output_dir and start anew.", _GROUP
    )


def run(argv: list[str]) -> int:
    """Run a study. Exit status 0, or 1 where runs are missing in the end."""
    parser = StrictParser(
        (StudyOptions,),
        positional=("file",),
        prog="stepjepa study FILE",
        description="Train the arms of a study over paired seeds, with shuffled and random targets as controls, at equal "
        "examples and at equal compute; choose hyper-parameters on the validation split, score the test split once, and say "
        "what is established. Started again, a study goes on where it was ended.",
        epilog="example: stepjepa study study.yaml --jobs 2; docs/study.md describes the file",
    )
    options: StudyOptions
    (options,) = parser.parse(argv)
    if options.recipes:
        from stepjepa.study.recipes import recipe_lines

        print_text("\n".join(folded(recipe_lines())))
        return 0
    if not options.file:
        raise ConfigError("no study given; write: stepjepa study study.yaml (stepjepa study --list shows recipes)")
    study = read(options)
    for note in study.notes:
        print_text(f"note   {note}")
    if options.dry_run:
        from stepjepa.study.listing import listing

        print_text("\n".join(listing(study, options.overwrite_output_dir)))
        return 0
    check_libraries()
    return carry_out(study, options.overwrite_output_dir)


def read(options: StudyOptions) -> Study:
    """The study that the options name, with what they change.

    Raises:
        ConfigError: it cannot be used.
    """
    from stepjepa.study.reading import read_study
    from stepjepa.study.recipes import open_study
    from stepjepa.study.tree import check_read, set_value

    name, tree = open_study(str(options.file))
    given: dict[str, Any] = {name: getattr(options, name) for name in ("jobs", "executor")}
    assignments = [f"{name}={value}" for name, value in given.items() if value is not None]
    if options.seeds is not None:
        assignments.append(f"seeds={list(options.seeds)}" if options.seeds else "seeds=[]")
    assignments += options.overrides or []
    for assignment in assignments:
        if options.mini and "mini" in tree.given:  # on top of what the section says
            assignment = f"mini.{assignment.removeprefix('mini.')}"
        tree = set_value(tree, assignment)
        check_read(tree, assignment, options.mini)
    study = read_study(tree, name, options.mini)
    return replace(study, output_dir=Path(options.output_dir)) if options.output_dir else study


def carry_out(study: Study, overwrite: bool) -> int:
    """Run, report; exit status."""
    from stepjepa.study.report import write_report
    from stepjepa.study.run import run_study

    try:
        with explaining("jobs, or per_device_train_batch_size in the study", "start the same command again"):
            outcome = run_study(study, print_text, overwrite)
    except (KeyboardInterrupt, SystemExit):
        print_error("stepjepa study: ended before its end; the same command goes on from there")
        raise
    print_text("\n" + "\n".join(write_report(outcome)))
    return 1 if outcome.failed else 0


def check_libraries() -> None:
    """Refuse to begin what could not be reported in the end.

    Raises:
        ConfigError: a library is not installed.
    """
    for name in _NEEDED:
        if find_spec(name) is None:
            raise ConfigError(
                f"a study needs {name}, which is not installed; install it with: pip install 'stepjepa[study]'"
            )
