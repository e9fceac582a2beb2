"""What a study would run: ``--dry_run``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stepjepa.study.grid import Run, all_runs, changes, count_in_words, row_name
from stepjepa.study.run import StudyRun
from stepjepa.study.spec import Block, Study


def listing(study: Study, overwrite: bool = False) -> list[str]:
    """Lines that say how many runs there are, what each arm changes, and how it is judged. Nothing is written.

    Raises:
        ConfigError: the study's folder cannot be used.
    """
    runs = list(all_runs(study))
    finished = 0 if overwrite else StudyRun(study, lambda line: None).check()
    lines = [study.title, *([study.shows] if study.shows else []), ""]
    lines.append(f"{count_in_words(runs)} in {study.output_dir}, {finished} of them finished; {_how(study)}")
    for block in study.blocks:
        lines += ["", *_block_lines(block, [run for run in runs if run.block == block.name])]
    return lines


def _block_lines(block: Block, runs: list[Run]) -> Iterator[str]:
    if block.name:
        yield f"block {block.name}"
    yield f"base       {words(block.base)}"
    yield f"seeds      {' '.join(map(str, block.seeds))}; baseline {block.baseline}"
    yield f"data       {_data(block)}"
    yield f"metrics    {', '.join(metric.name for metric in block.metrics)}; {_selection(block)}"
    width = max(len(run.row) for run in runs)
    for arm in block.arms:
        for variant in ("", *arm.variants):
            own = [run for run in runs if run.row == row_name(arm.name, variant)]
            if variant:
                given = {
                    k: v for k, v in changes(own[0], block).items() if k not in own[0].cell and k not in arm.settings
                }
                said = f"as {arm.name}, {words(given)}"
            else:
                said = words(arm.settings) or "the base"
                if len(arm.cells) > 1:
                    values: dict[str, list[Any]] = {}
                    for cell in arm.cells:
                        for name, value in cell.items():
                            if value not in values.setdefault(name, []):
                                values[name].append(value)
                    said += f"; tuned: {words(values)}"
            yield f"  {own[0].row:<{width}}  {count_in_words(own):>8}  {said}"


def words(values: Mapping[str, Any]) -> str:
    """``lbd=0.1 predictors=2``."""
    return " ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()
    )


def _how(study: Study) -> str:
    where = {"processes": "processes of this machine", "slurm": "SLURM jobs", "local": "jobs on this machine"}
    return f"{study.jobs} at a time as {where[study.executor]}"


def _data(block: Block) -> str:
    data = block.data
    if data.builtin is not None:
        return "built in: " + words(data.builtin)
    return f"train {', '.join(data.train)}; select {data.select or 'none'}; test {data.test}"


def _selection(block: Block) -> str:
    if all(len(arm.cells) == 1 for arm in block.arms):
        return "nothing is tuned"
    metric, highest = block.select
    return f"the {'highest' if highest else 'lowest'} {metric} of the validation split chooses"
