"""The folder of a training run: what state it is in, which checkpoint can be gone on from, and who may write to it.

Everything that asks whether a run is complete, cut off or running asks `RunFolder`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from stepjepa.errors import ConfigError, StepJepaError
from stepjepa.utils.files import LOCK, MANIFEST, check_writable, listed_files, locked, mismatch, read_json

if TYPE_CHECKING:
    from stepjepa.training.record import ResumeRecord

RECORD, METRICS = "run.json", "metrics.json"
# In every checkpoint that a run can go on from, one for each process; `training.log_state` writes it.
LOG_STATE = "log_state_{}.pt"
RESUME_RECORD = "resume_record.json"  # what a run that is resumed from it must share; `training.record` writes it
_STATE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)$")
BROKEN = "broken.json"  # of a run that stopped because something was not finite: at which step, and what
_BEGUN = ("resolved.yaml", RECORD, BROKEN, "data_report.json", "runs", ".export", ".upload", LOCK)
# In the order in which they are removed: first those by which a run is complete.
_OWN_FILES = [METRICS, MANIFEST, BROKEN]
_OWN_FILES += (
    "run.json resolved.yaml data_report.json config.json generation_config.json model.safetensors "
    "model.safetensors.index.json adapter_model.safetensors adapter_config.json predictors.safetensors "
    "jepa_head.safetensors"
).split()
_held: set[Path] = set()  # folders that this process writes to
T = TypeVar("T")


class RunFolder:
    """The `output_dir` of a run.

    It is complete where `finished_steps` is the number of steps that is asked for, running while another process is inside
    `running`, and else new or cut off: `newest` says where it goes on.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    # State

    @property
    def ended(self) -> bool:
        """Whether the run that was begun here last has written its metrics, its last file. Nothing else is looked at."""
        metrics = self._read(METRICS)
        return bool(metrics) and metrics.get("steps") == self._read(RECORD).get("steps")

    @cached_property
    def finished_steps(self) -> int | None:
        """The steps of the run that ended here; None where none has, where a longer one was begun, or where the exported
        model is not as it was written."""
        steps = self._read(METRICS).get("steps")
        if steps is None or not self.ended:
            return None
        return steps if mismatch(self.path, only_weights=True) is None else None

    @property
    def broken(self) -> dict[str, Any] | None:
        """``step`` and ``what`` of a run that stopped there because something was not finite; None for any other."""
        return self._read(BROKEN) or None

    @property
    def final_metrics(self) -> dict[str, Any]:
        """The metrics of the run that ended here."""
        return self._read(METRICS).get("metrics", {})

    def _read(self, name: str) -> dict[str, Any]:
        try:
            record = read_json(self.path / name)
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    # Who may write

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be the only run that writes to this folder, for as long as this context lasts; the folder is made.

        Every process of the run must enter it; the main one holds the lock.

        Raises:
            ConfigError: another process writes to it, or it cannot be written to.
        """
        place = self.path.resolve()
        if place in _held:
            yield
            return
        with ExitStack() as stack:
            on_main(lambda: stack.enter_context(self._alone()))
            _held.add(place)
            stack.callback(_held.discard, place)
            yield

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"--output_dir {self.path}: is a file; give a folder")
        check_writable(self.path)
        made = [place for place in (self.path, *self.path.parents) if not place.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with locked(self.path / LOCK) as alone:
                if not alone:
                    raise ConfigError(
                        f"--output_dir {self.path}: another run is writing to this folder; wait for its end, or give "
                        "another folder"
                    )
                yield
        finally:
            with suppress(OSError):  # what was made for nothing
                for place in made:
                    place.rmdir()

    # Checkpoints

    def newest(self) -> tuple[Path | None, list[str]]:
        """The newest checkpoint that a run can go on from, None where there is none; and why newer ones cannot serve.

        Raises:
            ConfigError: there are checkpoints, none can serve, and not all of them were cut short by a kill.
        """
        passed: list[str] = []
        lost: list[str] = []
        for _, folder in sorted(self._numbered(), reverse=True):
            problem = checkpoint_problem(folder)
            if problem is None:
                return folder, passed
            passed.append(f"{folder}: {problem}")
            lost += [] if cut_short(folder) else [passed[-1]]
        if lost:
            more = f" (nor can {len(passed) - 1} older)" if len(passed) > 1 else ""
            raise ConfigError(
                f"--resume_from_checkpoint: no checkpoint can be gone on from: {lost[0]}{more}; start over with "
                "--overwrite_output_dir, or give another --output_dir"
            )
        return None, passed

    def chosen(self, wanted: str | os.PathLike[str] | Literal[True]) -> tuple[Path | None, list[str]]:
        """`newest` for True, else the checkpoint that is named. Every process must call it.

        Raises:
            ConfigError: it cannot serve.
        """
        return on_main(self.newest if wanted is True else lambda: (checked_checkpoint(Path(wanted)), []))

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint that a run can go on from, None where there is none."""
        with suppress(ConfigError):
            return self.newest()[0]
        return None

    def rotate(self, newest: Path, limit: int | None, best: str | None) -> None:
        """Remove checkpoints until `limit` are left, the oldest first, but neither `newest` nor the `best`.

        None and numbers below 1 are no limit. Those with a higher number than the newest are of an earlier start: first.
        """
        if limit is None or limit < 1:
            return
        step = int(newest.name.rpartition("-")[2])
        kept = {newest.resolve(), *([Path(best).resolve()] if best else [])}
        others = [
            (number <= step, number, folder) for number, folder in self._numbered() if folder.resolve() not in kept
        ]
        number_kept = sum(place.is_dir() for place in kept)
        for _, _, folder in sorted(others)[: max(len(others) - max(limit - number_kept, 0), 0)]:
            remove_checkpoint(folder)

    def finish_rotation(self, checkpoint: Path, limit: int | None) -> None:
        """Finish removing checkpoints older than this one of the same folder, where a kill came in between.

        What was cut short goes in any case; complete ones beyond `limit` go where this checkpoint is the newest.
        """
        match = _CHECKPOINT.match(checkpoint.name)
        if match is None or checkpoint.resolve().parent != self.path.resolve():
            return
        step = int(match[1])
        for number, folder in self._numbered():
            if number < step and cut_short(folder):
                remove_checkpoint(folder)
        if max(number for number, _ in self._numbered()) == step:
            best = read_json(checkpoint / _STATE).get("best_model_checkpoint")
            self.rotate(checkpoint, limit, str(self.path / Path(best).name) if best else None)

    def _numbered(self) -> list[tuple[int, Path]]:
        entries = self.path.iterdir() if self.path.is_dir() else ()
        return [(int(match[1]), entry) for entry in entries if (match := _CHECKPOINT.match(entry.name))]

    # Starting

    def check_free(self, overwrite: bool, resuming: bool = False, checkpoint: Path | None = None) -> None:
        """Refuse to write over anything.

        A run that goes on may do so over what it has left: its checkpoints, or what a kill before the first of them leaves.

        Raises:
            ConfigError: the folder holds something else and overwriting was not asked for.
        """
        own = checkpoint is not None and checkpoint.resolve().parent == self.path.resolve()
        if overwrite or own or not self.path.is_dir():
            return
        unfinished = "steps" in self._read(RECORD) and not (self.path / METRICS).exists()
        again = resuming and checkpoint is None  # one that was named is another run's here
        if again and (unfinished or self.finished_steps is not None):
            return
        entries = [entry for entry in self.path.iterdir() if entry.name != LOCK and not (again and _left_over(entry))]
        if entries:
            raise ConfigError(
                f"--output_dir {self.path}: the folder is not empty ({entries[0].name}); give another one, go on from a "
                "checkpoint with --resume_from_checkpoint true, or start over with --overwrite_output_dir"
            )

    def clear(self) -> None:
        """Remove what a run writes (checkpoints, model, records) and nothing else."""
        for name in _OWN_FILES:
            (self.path / name).unlink(missing_ok=True)
        for entry in self.path.glob("model-*.safetensors"):
            entry.unlink()
        for _, folder in self._numbered():
            remove_checkpoint(folder)

    def check_same(self, record: ResumeRecord) -> None:
        """Refuse to take a run that ended here for one with other data or settings.

        Args:
            record: of the run that is about to start.

        Raises:
            ConfigError: what differs.
        """
        before = self._read(RECORD)
        data = {name: one for name, one in before.get("data", {}).items() if not name.startswith("eval")}
        known = type(record)(before.get("settings", {}), data, before.get("processes", record.processes))
        record.check_same(known, self.path)


def cut_short(folder: Path) -> bool:
    """Whether a kill has cut a checkpoint short while it was written or removed."""
    if (folder / MANIFEST).exists() or not folder.is_dir():
        return False
    return not (folder / _STATE).exists() or any(folder.glob(LOG_STATE.format("*")))


def checkpoint_problem(folder: Path) -> str | None:
    """Why a run cannot go on from a checkpoint, None where it can. Reads all of it."""
    if not folder.is_dir():
        return "there is no such checkpoint"
    if cut_short(folder):
        return "cut short by a kill while it was written"
    if not (folder / MANIFEST).exists():
        return f"written by version 0.1, without {MANIFEST}; this version cannot go on from it"
    problem = mismatch(folder)
    if problem is None and RESUME_RECORD not in (listed_files(folder) or {}):
        return f"written by an earlier version, without {RESUME_RECORD}; this version cannot resume from it"
    if problem is None and LOG_STATE.format(0) not in (listed_files(folder) or {}):
        problem = "written with save_only_model, without the optimizer's state; a run cannot go on from it"
    return problem


def checked_checkpoint(folder: Path) -> Path:
    """A checkpoint that was named, if a run can go on from it.

    Raises:
        ConfigError: it cannot.
    """
    problem = checkpoint_problem(folder)
    if problem is not None:
        raise ConfigError(f"--resume_from_checkpoint {folder}: {problem}")
    return folder


def recorded_steps(checkpoint: Path) -> tuple[int, int]:
    """The step that a checkpoint was written at, and how many steps its run was to have."""
    state = read_json(checkpoint / _STATE)
    return state["global_step"], state["max_steps"]


def remove_checkpoint(folder: Path) -> None:
    """Remove a checkpoint; its manifest first, so that one that is removed in part is not taken for a damaged one."""
    (folder / MANIFEST).unlink(missing_ok=True)
    (folder / _STATE).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def on_main(work: Callable[[], T]) -> T:
    """Do `work` in the main process alone; its result, or its error, in all processes."""
    import torch  # here, so that a reader of records need not load it

    group = torch.distributed
    if not (group.is_available() and group.is_initialized()):
        return work()
    told: list[Any] = [None, None]
    if group.get_rank() == 0:
        try:
            told[0] = work()
        except (StepJepaError, OSError) as error:
            told[1] = error
    group.broadcast_object_list(told, src=0)
    if told[1] is not None:
        raise told[1]
    return told[0]


def _left_over(entry: Path) -> bool:
    """Whether a run that was killed before its first checkpoint has left this."""
    if entry.name in _BEGUN or entry.name.startswith(".stepjepa-"):
        return True
    temporary = entry.name.startswith(".") and entry.name.endswith(".tmp")
    return temporary or (entry.name.startswith("checkpoint-") and cut_short(entry))
