"""Training in a Ray cluster, and what a study's tasks there share.

The cluster is the one that RAY_ADDRESS names or that runs on this machine, else one that Ray starts here for the time of the
command. Its machines have the library, and see the command's files under the same paths.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TypeVar, cast

from stepjepa.errors import ConfigError, RunError, StepJepaError, said
from stepjepa.utils.failures import library

Result = TypeVar("Result")
RETRIES = 3  # of a task whose process was lost


def connect() -> ModuleType:
    """The module `ray`, connected. Raises ConfigError: it is not installed, or the cluster cannot be reached."""
    # By default it takes a quarter of an hour to find no cluster.
    os.environ.setdefault("RAY_NUM_REDIS_GETRETRIES", "2")
    ray = library("ray", "ray")
    if not ray.is_initialized():
        try:
            ray.init(logging_level="warning")
        except (OSError, RuntimeError, ValueError) as error:
            where = os.environ.get("RAY_ADDRESS", "on this machine")
            raise ConfigError(f"the Ray cluster {where}: {said(error)}") from None
    return ray


@contextmanager
def plain_errors() -> Iterator[None]:
    """Within this context, what the work has raised is raised as it was, and what Ray raises is a `RunError`."""
    errors = library("ray.exceptions", "ray")
    try:
        yield
    except errors.RayTaskError as error:
        raise error.cause from None
    except errors.RayError as error:
        raise RunError(f"Ray: {said(error)}") from None


def enter(folder: str) -> None:
    """Work in a folder, where this machine has it."""
    with suppress(OSError):
        os.chdir(folder)


def room(count: int, option: str) -> bool:
    """Whether `count` processes have a GPU each. Raises ConfigError: the cluster is too small."""
    there = connect().cluster_resources()
    kind = "GPU" if "GPU" in there else "CPU"
    if there[kind] < count:
        raise ConfigError(f"--{option} {count}: the Ray cluster has {there[kind]:g} {kind}s")
    return kind == "GPU"


def in_workers(work: Callable[[], Result], count: int, option: str, resumes: bool) -> Result:
    """What `work` gives in the first of the processes of a TorchTrainer. If it `resumes`, all begin again where one fails,
    but for a mistake of the user's.

    Raises:
        ConfigError: see `room`. What `work` raises is raised as it was.
        KeyboardInterrupt: Ray was interrupted.
        RunError: a process was lost too often.
    """
    use_gpu, train, folder = room(count, option), library("ray.train", "ray"), os.getcwd()

    def loop() -> Result:
        enter(folder)
        return work()

    os.environ["RAY_TRAIN_ENABLE_PRINT_PATCH"] = "0"  # which prints every line twice
    scaling = train.ScalingConfig(num_workers=count, use_gpu=use_gpu)
    interrupted = signal.getsignal(signal.SIGINT)  # Ray takes it over
    with TemporaryDirectory() as records:
        run, left = train.RunConfig(storage_path=records), RETRIES * resumes
        trainer = library("ray.train.torch", "ray").TorchTrainer
        while True:
            try:
                return cast("Result", trainer(loop, scaling_config=scaling, run_config=run).fit().return_value)
            except train.TrainingFailedError as error:
                # Ray may put its traceback around them.
                causes = (getattr(one, "_base_exc", one) for one in getattr(error, "worker_failures", {}).values())
                found = next((one for one in causes if isinstance(one, StepJepaError)), None)
                if not left or (found is not None and found.status == StepJepaError.status):
                    raise found or RunError(f"Ray: {said(error)}") from None
                left -= 1
            except SystemExit:  # of Ray, when it is interrupted
                raise KeyboardInterrupt from None
            finally:
                if signal.getsignal(signal.SIGINT) is not interrupted:
                    signal.signal(signal.SIGINT, interrupted)
