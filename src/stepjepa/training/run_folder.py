"""The folder of a training run: what state it is in, which checkpoint can be resumed from, and who may write to it.

Everything that asks whether a run is complete, cut off or running asks `RunFolder`. This module loads no torch.
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
    check_writable,
    locked,
    mismatch,
    read_json,
    read_object,
    remove_tree,
    write_json,
)

_NAME = Names(TrainerOptions, JEPAOptions)
RECORD, METRICS = "run.json", "metrics.json"
BROKEN = "broken.json"  # of a run that stopped because something was not finite: at which step, and what
RESUME_RECORD = "resume_record.json"  # in every checkpoint: what a resumed run must share
_STATE, _SCHEDULE = "trainer_state.json", "scheduler.pt"  # the Trainer's
_CHECKPOINT = re.compile(r"checkpoint-(\d+)$")
# In the order in which they are removed: first those by which a run is complete.
_OWN_FILES = [METRICS, MANIFEST, BROKEN]
_OWN_FILES += (
    "run.json resolved.yaml data_report.json config.json generation_config.json model.safetensors "
    "model.safetensors.index.json adapter_model.safetensors adapter_config.json predictors.safetensors"
).split()
T = TypeVar("T")


class Cut(NamedTuple):
    """How the examples of an optimizer step are shared out: examples of a micro-batch, micro-batches of a process, and
    processes. Its text is ``8 x 2 accumulated x 2 processes``."""

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
    """What a resumed run must share with its checkpoint; lies in every checkpoint.

    Attributes:
        settings: options that may not change when a run is resumed -> value, as JSON holds it; of a PEFT model the
            adapter's as well.
        data: training data set -> fingerprint.
        cut: of the run; only its batch must be shared.
    """

    settings: dict[str, Any]
    data: dict[str, str] = field(default_factory=dict)
    cut: Cut = Cut()

    def write(self, checkpoint: Path) -> None:
        """Write the record into a checkpoint."""
        write_json(checkpoint / RESUME_RECORD, asdict(self))

    @classmethod
    def read(cls, checkpoint: Path) -> ResumeRecord:
        """What `write` wrote."""
        record = read_json(checkpoint / RESUME_RECORD)
        return cls(dict(record["settings"]), dict(record["data"]), Cut(*record["cut"]))

    def check_same(self, before: ResumeRecord, where: Path) -> int:
        """Refuse to resume the run in `where`, whose record is `before`, with other data, settings or another batch.

        Returns:
            how many micro-batches of this run's make an optimizer step of that one.

        Raises:
            ConfigError: what differs, with both values.
        """
        values = {name: (before.settings.get(name, new), new) for name, new in self.settings.items()}
        differs = [f"{name}={old}, not {new}" for name, (old, new) in values.items() if old != new]
        if differs:
            wrong = f"the run in {where} has {differs[0]}; resume with the same settings"
        elif before.data != self.data:
            wrong = f"the training data is not that of the run in {where}; resume with the same file"
        else:
            wrong = self._unfit(before.cut)
            wrong = wrong and f"the run in {where} takes {before.cut.batch} examples a step ({before.cut}), {wrong}"
        if wrong:
            raise ConfigError(f"--{_NAME.resume_from_checkpoint}: {wrong}, or give another --{_NAME.output_dir}")
        return before.cut.batch // (self.cut.size * self.cut.processes)

    def _unfit(self, old: Cut) -> str:
        """Why this run's micro-batches do not make the optimizer steps of a run that was cut as `old`; empty if they do."""
        size, accumulation, processes = self.cut
        if self.settings.get(_NAME.streaming) and processes != old.processes:
            return f"and a stream is resumed on as many processes: start {old.processes}"
        if size * processes == old.size * old.processes:
            return "" if accumulation == old.accumulation else f"not {self.cut.batch}; resume with as many"
        if self.settings.get("dataloader_drop_last"):
            return "and what --dataloader_drop_last drops depends on how; resume with the same"
        if self.settings.get(_NAME.loss_scale) == "reference":
            return f"and --{_NAME.loss_scale} reference makes the size of the gradients depend on how; resume with the same"
        if old.batch % (size * processes) == 0:
            return ""
        micro = self.cut._replace(accumulation=1)
        return (
            f"which is no multiple of {micro}; change --{_NAME.per_device_train_batch_size} or the number of processes"
        )


class RunFolder:
    """The `output_dir` of a run.

    It is complete where `finished_steps` is the number of steps that is asked for, running while another process is inside
    `running`, and else new or cut off: `newest` says where it resumes.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    # State

    @property
    def holds_model(self) -> bool:
        """Whether a run's records or a model are here, next to which no other command may write."""
        names = RECORD, "resolved.yaml", "config.json", "adapter_config.json"
        return any((self.path / name).is_file() for name in names)

    @property
    def ended(self) -> bool:
        """Whether the run that was begun here last has written its metrics, its last file. Nothing else is looked at."""
        metrics = self._read(METRICS)
        return bool(metrics) and metrics.get("steps") == self._read(RECORD).get("steps")

    @cached_property
    def finished_steps(self) -> int | None:
        """The steps of the run that ended here; None where none has, where a longer one was begun, or where the exported
        model is not as it was written."""
        if not self.ended or mismatch(self.path, only_weights=True) is not None:
            return None
        return self._read(METRICS).get("steps")

    def stopped_by(self, rules: Mapping[str, float | None]) -> bool:
        """Whether the run that ended here was stopped before its last step under these rules of its evaluations."""
        record = self._read(RECORD)
        return any(record.get(name) is not None for name in rules) and all(
            record.get(name) == value for name, value in rules.items()
        )

    @property
    def broken(self) -> dict[str, Any] | None:
        """``step`` and ``what`` of a run that stopped there because something was not finite; None for any other."""
        return self._read(BROKEN) or None

    def _read(self, name: str) -> dict[str, Any]:
        return read_object(self.path / name)

    def check_same(self, record: ResumeRecord) -> int:
        """`ResumeRecord.check_same` of a run that ended here and that of `record`, which is about to start.

        Raises:
            ConfigError: they differ in data, settings or batch.
        """
        before = self._read(RECORD)
        data = {name: one for name, one in before.get("data", {}).items() if not name.startswith("eval")}
        cut = Cut(*before.get("cut", record.cut))
        return record.check_same(ResumeRecord(before.get("settings", {}), data, cut), self.path)

    # Who may write

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be the only run that writes to this folder, for as long as this context lasts; the folder is made.

        Every process of the run must enter it; the main one holds the lock.

        Raises:
            ConfigError: another process writes to it, or it cannot be written to.
        """
        with ExitStack() as stack:
            on_main(lambda: stack.enter_context(self._locked()))
            yield

    @contextmanager
    def _locked(self) -> Iterator[None]:
        check_writable(self.path)
        made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with locked(self.path / LOCK) as free:
                if not free:
                    raise ConfigError(
                        f"--{_NAME.output_dir} {self.path}: another run is writing to this folder; wait for its end, or "
                        "give another folder"
                    )
                yield
        finally:
            with suppress(OSError):  # what was made for nothing
                for folder in made:
                    folder.rmdir()

    def check_free(self, overwrite: bool, resuming: bool = False, checkpoint: Path | None = None) -> None:
        """Refuse to write over anything but what the same run has left: its checkpoints, or what a kill before the first
        of them leaves.

        Raises:
            ConfigError: the folder holds something else and overwriting was not asked for.
        """
        self.check_checkpoints(checkpoint)
        own = checkpoint is not None and self._holds(checkpoint)
        if overwrite or own or not self.path.is_dir():
            return
        again = resuming and checkpoint is None  # one that was named is another run's here
        unfinished = "steps" in self._read(RECORD) and not (self.path / METRICS).exists()
        if again and (unfinished or self.finished_steps is not None):
            return
        entries = [entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")]
        if entries:
            raise ConfigError(
                f"--{_NAME.output_dir} {self.path}: the folder is not empty ({entries[0]}); give another one, resume "
                f"with --{_NAME.resume_from_checkpoint} true, or start over with --{_NAME.overwrite_output_dir}"
            )

    def check_checkpoints(self, checkpoint: Path | None = None) -> None:
        """Refuse a folder where the name of a checkpoint is taken by something that a run neither removes nor writes over: a
        file, a folder that no run of this library has begun, or a symbolic link. Links up to the checkpoint that the run
        resumes from may stay, since no later checkpoint gets their names.

        Raises:
            ConfigError: there is one.
        """
        entries = self.path.glob("checkpoint-*") if self.path.is_dir() else ()
        last = _CHECKPOINT.search(checkpoint.name) if checkpoint is not None and self._holds(checkpoint) else None
        for entry in sorted(entries):
            number = _CHECKPOINT.match(entry.name)
            if number is None or _is_own(entry):
                continue
            if entry.is_symlink() and last is not None and int(number[1]) <= int(last[1]):
                continue
            what = "is a symbolic link" if entry.is_symlink() else f"has no {RESUME_RECORD} of a run"
            raise ConfigError(
                f"--{_NAME.output_dir} {self.path}: {entry.name} {what}, so the run does not remove it or write to it; move "
                f"it away, or give another --{_NAME.output_dir}"
            )

    def clear(self) -> None:
        """Remove what a run writes (checkpoints, model, records) and nothing else."""
        for name in _OWN_FILES:
            (self.path / name).unlink(missing_ok=True)
        if is_card(self.path):
            (self.path / CARD).unlink()
        for entry in self.path.glob("model-*.safetensors"):
            entry.unlink()
        for _, folder in self._numbered():
            remove_checkpoint(folder)

    # Checkpoints

    def chosen(self, wanted: str | os.PathLike[str] | Literal[True]) -> tuple[Path | None, list[str]]:
        """`newest` for True, else the checkpoint that is named. Every process must call it.

        Raises:
            ConfigError: it cannot be resumed from.
        """

        def named() -> tuple[Path, list[str]]:
            folder = Path(str(wanted))
            problem = _problem(folder)
            if problem is not None:
                raise ConfigError(f"--{_NAME.resume_from_checkpoint} {folder}: {problem}")
            return folder, []

        return on_main(self.newest if wanted is True else named)

    def newest(self) -> tuple[Path | None, list[str]]:
        """The newest checkpoint that can be resumed from, None where there is none; and what is wrong with newer ones.

        Raises:
            ConfigError: there are checkpoints, none can be resumed from, and not all of them were cut short by a kill.
        """
        passed: list[str] = []
        lost = ""
        for _, folder in sorted(self._numbered(), reverse=True):
            problem = _problem(folder)
            if problem is None:
                return folder, passed
            passed.append(f"{folder}: {problem}")
            if not lost and not _is_incomplete(folder):
                lost = passed[-1]
        if lost:
            raise ConfigError(
                f"--{_NAME.resume_from_checkpoint}: no checkpoint can be resumed from: {lost}; start over with "
                f"--{_NAME.overwrite_output_dir}, or give another --{_NAME.output_dir}"
            )
        return None, passed

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint that can be resumed from, None where there is none."""
        with suppress(ConfigError):
            return self.newest()[0]
        return None

    def rotate(self, checkpoint: Path, limit: int | None) -> None:
        """Remove the oldest checkpoints with a manifest beyond `limit` (None and numbers below 1 are no limit), but neither
        `checkpoint`, which was just written, nor the best one, and nothing through a link. Those with a higher number are
        of an earlier start: they go first.
        """
        if limit is None or limit < 1:
            return
        steps = {folder.name: step for step, folder in self._numbered() if _is_complete(folder)}
        state = read_json(checkpoint / _STATE)
        best = Path(state.get("best_model_checkpoint") or "")
        others = steps.keys() - {checkpoint.name, best.name}
        newest = steps[checkpoint.name]
        by_age = sorted(others, key=lambda name: (steps[name] <= newest, steps[name]))
        surplus = max(len(steps) - limit, 0)
        for name in by_age[:surplus]:
            remove_checkpoint(self.path / name)

    def _holds(self, checkpoint: Path) -> bool:
        """Whether a checkpoint is an entry of this folder, which may be a link to elsewhere."""
        return checkpoint.parent.resolve() == self.path.resolve()

    def _numbered(self) -> list[tuple[int, Path]]:
        entries = self.path.iterdir() if self.path.is_dir() else ()
        return [(int(match[1]), entry) for entry in entries if (match := _CHECKPOINT.match(entry.name))]


def recorded_steps(checkpoint: Path) -> tuple[int, int]:
    """The step that a checkpoint was written at, and how many steps its run was to have."""
    state = read_json(checkpoint / _STATE)
    return index(state["global_step"]), index(state["max_steps"])


@contextmanager
def loading(checkpoint: Path | None, is_loading: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Within this context, while `is_loading`, files that fit the manifest of a checkpoint and cannot be resumed from are
    one line; None is no checkpoint.

    Raises:
        ConfigError: something in the checkpoint cannot be used.
    """
    try:
        yield
    except StepJepaError:
        raise
    except Exception as error:  # json's, pickle's, safetensors', torch's, and those of code that meets other content
        if checkpoint is None or not is_loading() or is_out_of_memory(error):
            raise
        raise ConfigError(
            f"--{_NAME.resume_from_checkpoint} {checkpoint}: what its files hold cannot be resumed from "
            f"({type(error).__name__}: {said(error, lines=1)[:200]}); move it away, and an older one is taken"
        ) from error


def on_main(work: Callable[[], T]) -> T:
    """Do `work` in the main process alone; its result, or its error, in all processes."""
    import torch  # here, so that a reader of records need not load it

    group = torch.distributed
    if not (group.is_available() and group.is_initialized()):
        return work()
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


def _is_old(folder: Path) -> bool:
    """Whether version 0.1 wrote a checkpoint, which has another record and no manifest."""
    return (folder / _STATE).exists() and "cut" not in read_object(folder / RESUME_RECORD)


def _is_complete(folder: Path) -> bool:
    """Whether a run of this library has written all of a checkpoint, which is not a link to elsewhere."""
    return _is_own(folder) and (folder / MANIFEST).exists()


def _is_incomplete(folder: Path) -> bool:
    """Whether a kill came while a checkpoint was written or removed."""
    return folder.is_dir() and not (folder / MANIFEST).exists() and not _is_old(folder)


def _problem(folder: Path) -> str | None:
    """Why a checkpoint cannot be resumed from, None where it can. Reads all of it."""
    if not folder.is_dir():
        return "there is no such checkpoint"
    if _is_incomplete(folder):
        return f"it has no {MANIFEST}: cut short by a kill while it was written"
    if not (folder / MANIFEST).exists():
        return f"written by version 0.1, without {MANIFEST}; this version cannot resume from it"
    problem = mismatch(folder)
    if problem is None and _is_old(folder):
        return f"written by an earlier version, whose {RESUME_RECORD} is another; this version cannot resume from it"
    if problem is None and not (folder / _SCHEDULE).exists():
        return "written with save_only_model, without the optimizer's state; no run can resume from it"
    return problem


def begin_checkpoint(checkpoint: Path, record: ResumeRecord) -> None:
    """Make the folder of a checkpoint and write the record, its first file, by which the folder is known as a run's own.

    What is there under this name (a checkpoint that was cut short or damaged, or one of an earlier start) is removed.

    Raises:
        RunError: something else is there.
    """
    if os.path.lexists(checkpoint) and not _is_own(checkpoint):
        raise RunError(f"{checkpoint}: was not written by this run, and is not removed; move it away, then resume")
    remove_checkpoint(checkpoint)
    checkpoint.mkdir(parents=True)
    record.write(checkpoint)


def remove_checkpoint(checkpoint: Path) -> None:
    """Remove a checkpoint that a run of this library has begun; anything else, and what a link points to, stays.

    The manifest goes first, so that one that is removed in part is known as incomplete, and the record last, so that the
    rest is still known as a run's own.
    """
    if not _is_own(checkpoint):
        return
    entries = sorted(checkpoint.iterdir(), key=lambda entry: (entry.name != MANIFEST, entry.name))
    with suppress(OSError):  # what cannot be removed stays, and keeps the record
        for entry in entries:
            if entry.name != RESUME_RECORD:
                remove_tree(entry)
        (checkpoint / RESUME_RECORD).unlink(missing_ok=True)
        checkpoint.rmdir()


def _is_own(checkpoint: Path) -> bool:
    """Whether a run of this library has begun the folder of a checkpoint: it has the record, or a kill came before that."""
    if checkpoint.is_symlink() or not checkpoint.is_dir():
        return False
    if (checkpoint / RESUME_RECORD).is_file():
        return True
    return all(entry.name == f".{RESUME_RECORD}.tmp" for entry in checkpoint.iterdir())
