"""The folder of a training run: the state of the run, the checkpoint to resume from, and who may write to the folder.

Only `RunFolder` decides whether a run is complete, interrupted or in progress. Importing this module does not load torch.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from operator import index
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from stepjepa.config.option import Names
from stepjepa.errors import ConfigError, RunError, StepJepaError, is_out_of_memory, said
from stepjepa.modeling.card import CARD, is_card
from stepjepa.training.options import JEPAOptions, TrainerOptions
from stepjepa.utils.files import (
    LOCK,
    MANIFEST,
    AnyPath,
    Record,
    check_writable,
    locked,
    mismatch,
    read_json,
    read_object,
    remove_tree,
    write_json,
)
from stepjepa.utils.terminal import say

_NAME = Names(TrainerOptions, JEPAOptions)
# The first and the last file that a run writes.
RECORD, METRICS = "run.json", "metrics.json"
# Written by a run that stopped because a number was not finite; has the step and the reason.
BROKEN = "broken.json"
# File in every checkpoint that records what a resumed run must share with it.
RESUME_RECORD = "resume_record.json"
# Files of the Trainer in a checkpoint.
_STATE, _SCHEDULE = "trainer_state.json", "scheduler.pt"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)$")
# In the order of removal. Files that mark a run as complete come first, so that a kill in between cannot leave a run that
# looks complete.
_RUN_FILES = [METRICS, MANIFEST, BROKEN]
_RUN_FILES += (
    "resolved.yaml data_report.json config.json generation_config.json model.safetensors "
    "model.safetensors.index.json adapter_model.safetensors adapter_config.json predictors.safetensors"
).split()
T = TypeVar("T")


class Cut(NamedTuple):
    """How the examples of an optimizer step are divided: examples per micro-batch, micro-batches per process, and processes.
    Its text is ``8 x 2 accumulated x 2 processes``."""

    size: int = 1
    accumulation: int = 1
    processes: int = 1

    @property
    def batch(self) -> int:
        """Examples of an optimizer step."""
        return math.prod(self)

    def __str__(self) -> str:
        parts = [str(self.size)]
        parts += [f"{self.accumulation} accumulated"] if self.accumulation > 1 else []
        parts += [f"{self.processes} processes"] if self.processes > 1 else []
        return " x ".join(parts)


@dataclass(frozen=True)
class ResumeRecord:
    """What a resumed run must share with its checkpoint; part of every checkpoint.

    Attributes:
        settings: values, in JSON form, of the options that must not change when a run is resumed; for a PEFT model, also
            those of the adapter.
        data: training data set -> fingerprint.
        cut: how the run divides an optimizer step; only the number of examples per step must stay the same.
    """

    settings: Record
    data: dict[str, str] = field(default_factory=dict)
    cut: Cut = Cut()

    @classmethod
    def read(cls, checkpoint: Path) -> ResumeRecord:
        """Read the record of a checkpoint."""
        record = read_json(checkpoint / RESUME_RECORD)
        return cls(dict(record["settings"]), dict(record["data"]), Cut(*record["cut"]))

    def check_same(self, before: ResumeRecord, where: Path) -> int:
        """Refuse to resume the run in `where`, whose record is `before`, with other data, other settings or another batch.

        Returns:
            The number of this run's micro-batches per process that make an optimizer step of that run.

        Raises:
            ConfigError: the records differ; the message says how.
        """
        problem = self._mismatch(before, f"the run in {where}")
        if problem:
            raise ConfigError(
                f"--{_NAME.resume_from_checkpoint}: {problem}, or give another --{_NAME.output_dir}"
            )
        return before.cut.batch // (self.cut.size * self.cut.processes)

    def _mismatch(self, before: ResumeRecord, run: str) -> str:
        """What differs from the record of a run, and how to resume it; empty if nothing differs."""
        for name, value in self.settings.items():
            # An option that the record lacks is newer than the run, and is not compared.
            recorded = before.settings.get(name, value)
            if recorded != value:
                return f"{run} has {name}={recorded}, not {value}; resume with its settings"
        if before.data != self.data:
            return f"the training data differs from that of {run}; resume with its data"
        problem = self._batch_mismatch(before.cut)
        if not problem:
            return ""
        return f"{run} takes {before.cut.batch} examples per step ({before.cut}), {problem}"

    def _batch_mismatch(self, old: Cut) -> str:
        """Why this run's micro-batches cannot form the optimizer steps of a run with the cut `old`; empty if they can."""
        size, accumulation, processes = self.cut
        # Each process reads its own share of a stream.
        if self.settings.get(_NAME.streaming) and processes != old.processes:
            return f"and a stream must be resumed on as many processes: start {old.processes}"
        if size * processes == old.size * old.processes:
            if accumulation == old.accumulation:
                return ""
            return f"not {self.cut.batch}; resume with the same number"
        # From here on the micro-batches differ, and accumulation must be adapted. Two options depend on the micro-batch
        # itself.
        if self.settings.get("dataloader_drop_last"):
            return "and with --dataloader_drop_last, their division into micro-batches must stay the same"
        if self.settings.get(_NAME.loss_scale) == "reference":
            return f"and with --{_NAME.loss_scale} reference, their division into micro-batches must stay the same"
        if old.batch % (size * processes) == 0:
            return ""
        micro = self.cut._replace(accumulation=1)
        return f"which is not a multiple of {micro}; change --{_NAME.per_device_train_batch_size} or the number of processes"


class RunFolder:
    """The `output_dir` of a run.

    The run is complete if `finished_steps` is the requested number of steps, and in progress while a process is inside
    `running`. Otherwise it is new or interrupted, and `newest` says where it resumes.
    """

    def __init__(self, path: AnyPath):
        self.path = Path(path)

    # State

    @property
    def holds_model(self) -> bool:
        """Whether the folder has the records of a run or a model, next to which no other command may write."""
        names = RECORD, "resolved.yaml", "config.json", "adapter_config.json"
        return any((self.path / name).is_file() for name in names)

    @property
    def ended(self) -> bool:
        """Whether the last run that started here has written its metrics, the last of its files. No other file is
        checked."""
        metrics = self._read(METRICS)
        return bool(metrics) and metrics.get("steps") == self._read(RECORD).get("steps")

    @cached_property
    def finished_steps(self) -> int | None:
        """The number of steps of the run that ended here. None if no run has ended, if another run was started after it, or
        if the weights of the exported model have changed."""
        # Only the weights are compared: users may edit the card or the tokenizer of a model.
        if not self.ended or mismatch(self.path, only_weights=True) is not None:
            return None
        return self._read(METRICS).get("steps")

    def stopped_by(self, rules: Mapping[str, float | None]) -> bool:
        """Whether an evaluation stopped the run that ended here before its last step, by the same rules."""
        record = self._read(RECORD)
        return any(record.get(name) is not None for name in rules) and all(
            record.get(name) == value for name, value in rules.items()
        )

    @property
    def broken(self) -> Record | None:
        """``step`` and ``what`` of a run that stopped because a number was not finite; None for any other run."""
        return self._read(BROKEN) or None

    def _read(self, name: str) -> Record:
        return read_object(self.path / name)

    def check_same(self, record: ResumeRecord) -> int:
        """Check with `ResumeRecord.check_same` that the run about to start, whose record is `record`, fits the run that
        ended here.

        Raises:
            ConfigError: the runs differ in data, settings or batch.
        """
        before = self._read(RECORD)
        fingerprints = before.get("data", {})
        data = {
            split: value for split, value in fingerprints.items() if not split.startswith("eval")
        }
        cut = Cut(*before.get("cut", record.cut))
        return record.check_same(ResumeRecord(before.get("settings", {}), data, cut), self.path)

    # Who may write

    @contextmanager
    def running(self) -> Iterator[None]:
        """Hold the folder's lock within this context, so that no other run writes to it, and create the folder if it does
        not exist.

        Every process of the run must enter the context; the main process holds the lock.

        Raises:
            ConfigError: another run is writing to the folder, or the folder is not writable.
        """
        # The stack releases the lock at the end, in the process that holds it.
        with ExitStack() as stack:
            on_main(lambda: stack.enter_context(self._locked()))
            yield

    @contextmanager
    def _locked(self) -> Iterator[None]:
        check_writable(self.path)
        created = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with locked(self.path / LOCK) as free:
                if not free:
                    raise ConfigError(
                        f"--{_NAME.output_dir} {self.path}: another run is writing to this folder; wait until it ends, or "
                        "give another folder"
                    )
                yield
        finally:
            # A run that was refused leaves no empty folders. The first folder with a file in it ends the loop.
            with suppress(OSError):
                for folder in created:
                    folder.rmdir()

    def check_free(
        self, overwrite: bool, resuming: bool = False, checkpoint: Path | None = None
    ) -> None:
        """Refuse to write over anything but files of the same run: its checkpoints, or the files left by a kill before the
        first checkpoint.

        Raises:
            ConfigError: the folder has other files, and `overwrite` is false; or it has a model that no run wrote.
        """
        self.check_checkpoints()
        if overwrite and self.holds_model and not (self.path / RECORD).exists():
            raise ConfigError(
                f"--{_NAME.output_dir} {self.path}: the folder has a model but no {RECORD}, so no run wrote it and none may "
                f"replace it; give another --{_NAME.output_dir}"
            )
        resumes_here = checkpoint is not None and checkpoint.parent.resolve() == self.path.resolve()
        if overwrite or resumes_here or not self.path.is_dir():
            return
        # A run that resumes from a checkpoint in another folder needs an empty folder.
        resumes_without_checkpoint = resuming and checkpoint is None
        unfinished = "steps" in self._read(RECORD) and not (self.path / METRICS).exists()
        if resumes_without_checkpoint and (unfinished or self.finished_steps is not None):
            return
        entries = [entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")]
        if entries:
            raise ConfigError(
                f"--{_NAME.output_dir} {self.path}: the folder is not empty ({entries[0]}); give another folder, resume "
                f"with --{_NAME.resume_from_checkpoint} true, or start over with --{_NAME.overwrite_output_dir}"
            )

    def check_checkpoints(self) -> None:
        """Refuse a folder in which something else has the name of a checkpoint: a file, a folder that no run of this library
        wrote, or a symbolic link. The run neither removes nor overwrites these.

        Raises:
            ConfigError: there is such an entry.
        """
        for _, entry in sorted(self._numbered()):
            if _is_own(entry):
                continue
            what = "is a symbolic link" if entry.is_symlink() else f"has no {RESUME_RECORD}"
            raise ConfigError(
                f"--{_NAME.output_dir} {self.path}: {entry.name} {what}, so the run may not remove it or write to it; move "
                f"it away, or give another --{_NAME.output_dir}"
            )

    def clear(self) -> None:
        """Remove the files of a run (checkpoints, model and records) and nothing else."""
        for name in _RUN_FILES:
            (self.path / name).unlink(missing_ok=True)
        # A README.md may be the user's own.
        if is_card(self.path):
            (self.path / CARD).unlink()
        for entry in self.path.glob("model-*.safetensors"):
            entry.unlink()
        for _, folder in self._numbered():
            remove_checkpoint(folder)
        # Last, because without it the files that a kill leaves would not count as a run's.
        (self.path / RECORD).unlink(missing_ok=True)

    # Checkpoints

    def chosen(self, wanted: AnyPath | Literal[True]) -> Path | None:
        """`newest` for True, and print the problems of newer ones; else the named checkpoint. Every process must call it.

        Raises:
            ConfigError: the run cannot resume from it.
        """
        if wanted is True:
            checkpoint, unusable = on_main(self.newest)
            for line in unusable:
                say(f"{line}; skipped")
            return checkpoint
        folder = Path(wanted)
        problem = on_main(lambda: _problem(folder))
        if problem is not None:
            raise ConfigError(f"--{_NAME.resume_from_checkpoint} {folder}: {problem}")
        return folder

    def newest(self) -> tuple[Path | None, list[str]]:
        """The newest usable checkpoint (None if there is none), and the problems of newer checkpoints, one line each.

        Raises:
            ConfigError: no checkpoint is usable, and not all of them were cut short by a kill.
        """
        unusable: list[str] = []
        # A checkpoint that was complete once and is now damaged: starting at step 0 would silently lose its work.
        damaged = ""
        for _, folder in sorted(self._numbered(), reverse=True):
            problem = _problem(folder)
            if problem is None:
                return folder, unusable
            unusable.append(f"{folder}: {problem}")
            if not damaged and (folder / MANIFEST).exists():
                damaged = unusable[-1]
        if damaged:
            raise ConfigError(
                f"--{_NAME.resume_from_checkpoint}: no checkpoint is usable ({damaged}); start over with "
                f"--{_NAME.overwrite_output_dir}, or give another --{_NAME.output_dir}"
            )
        return None, unusable

    @property
    def checkpoint(self) -> Path | None:
        """The newest usable checkpoint; None if there is none."""
        with suppress(ConfigError):
            return self.newest()[0]
        return None

    def rotate(self, checkpoint: Path, limit: int | None) -> None:
        """Remove the oldest complete checkpoints beyond `limit` (None or below 1: no limit).

        `checkpoint`, which was just written, and the best checkpoint stay, and no link is followed. Checkpoints with a
        higher number are from an earlier start, and are removed first.
        """
        if limit is None or limit < 1:
            return
        steps = {
            folder.name: step
            for step, folder in self._numbered()
            if _is_own(folder) and (folder / MANIFEST).exists()
        }
        state = read_json(checkpoint / _STATE)
        best = Path(state.get("best_model_checkpoint") or "")
        others = steps.keys() - {checkpoint.name, best.name}
        newest = steps[checkpoint.name]
        # False sorts first: checkpoints with a higher number, then the oldest.
        by_age = sorted(others, key=lambda name: (steps[name] <= newest, steps[name]))
        surplus = max(len(steps) - limit, 0)
        for name in by_age[:surplus]:
            remove_checkpoint(self.path / name)

    def _numbered(self) -> list[tuple[int, Path]]:
        entries = self.path.iterdir() if self.path.is_dir() else ()
        return [
            (int(match[1]), entry) for entry in entries if (match := _CHECKPOINT.match(entry.name))
        ]


def recorded_step(checkpoint: Path) -> int:
    """The step of a checkpoint."""
    return index(read_json(checkpoint / _STATE)["global_step"])


@contextmanager
def loading(
    checkpoint: Path | None, is_loading: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Within this context and while `is_loading`, turn an error while loading `checkpoint` (None for no checkpoint) into one
    line. Its files match the manifest, but their content may still be unusable.

    Raises:
        ConfigError: the content of the checkpoint cannot be used.
    """
    try:
        yield
    except StepJepaError:
        raise
    except Exception as error:
        # Any error may occur: of json, pickle, safetensors, torch, or of code that reads unexpected content.
        if checkpoint is None or not is_loading() or is_out_of_memory(error):
            raise
        raise ConfigError(
            f"--{_NAME.resume_from_checkpoint} {checkpoint}: its contents cannot be loaded "
            f"({type(error).__name__}: {said(error, lines=1)[:200]}); move it away to resume from an older checkpoint"
        ) from error


def on_main(work: Callable[[], T]) -> T:
    """Do `work` in the main process only, and return its result, or raise its error, in all processes."""
    # Imported here, so that reading records does not load torch.
    import torch

    group = torch.distributed
    if not (group.is_available() and group.is_initialized()):
        return work()
    # Result and error. Without the error, the other processes would wait for a result forever.
    shared: list[Any] = [None, None]
    if group.get_rank() == 0:
        try:
            shared[0] = work()
        except (StepJepaError, OSError) as error:
            shared[1] = error
    group.broadcast_object_list(shared, src=0)
    if shared[1] is not None:
        raise shared[1]
    return shared[0]


def _problem(folder: Path) -> str | None:
    """Why a run cannot resume from a checkpoint; None if it can. All files of the checkpoint are read."""
    if not folder.is_dir():
        return "there is no such checkpoint"
    if not (folder / MANIFEST).exists():
        return f"it has no {MANIFEST}; either it is not a checkpoint, or its run was killed while writing it"
    problem = mismatch(folder)
    if problem is not None:
        return problem
    if not (folder / _SCHEDULE).exists():
        return "written with save_only_model, so without the optimizer's state; no run can resume from it"
    return None


def begin_checkpoint(checkpoint: Path, record: ResumeRecord) -> None:
    """Create the folder of a checkpoint and write its first file, the record, which marks the folder as a run's own.

    An existing checkpoint of this name (incomplete, damaged, or of an earlier start) is removed.

    Raises:
        RunError: something else has this name.
    """
    if os.path.lexists(checkpoint) and not _is_own(checkpoint):
        raise RunError(
            f"{checkpoint} was not written by this run and is not removed; move it away, then resume"
        )
    remove_checkpoint(checkpoint)
    checkpoint.mkdir(parents=True)
    write_json(checkpoint / RESUME_RECORD, asdict(record))


def remove_checkpoint(checkpoint: Path) -> None:
    """Remove a checkpoint that a run of this library wrote. Anything else stays, including the target of a link.

    The manifest is removed first, so that a partly removed checkpoint counts as incomplete. The record is removed last, so
    that the rest still counts as a run's own.
    """
    if not _is_own(checkpoint):
        return
    entries = sorted(checkpoint.iterdir(), key=lambda entry: (entry.name != MANIFEST, entry.name))
    # A file that cannot be removed stays, together with the record, so the next start tries again.
    with suppress(OSError):
        for entry in entries:
            if entry.name != RESUME_RECORD:
                remove_tree(entry)
        (checkpoint / RESUME_RECORD).unlink(missing_ok=True)
        checkpoint.rmdir()


def _is_own(checkpoint: Path) -> bool:
    """Whether a run of this library created the folder of a checkpoint: the record is there, or a kill prevented it."""
    if checkpoint.is_symlink() or not checkpoint.is_dir():
        return False
    if (checkpoint / RESUME_RECORD).is_file():
        return True
    # A kill before the record is in place leaves an empty folder, or the temporary file of the record.
    return all(entry.name == f".{RESUME_RECORD}.tmp" for entry in checkpoint.iterdir())
