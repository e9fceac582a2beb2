"""Built-in tasks: seeded generators of chat rows, as hard as their options say.

Row ``i`` of seed ``s`` depends on ``(s, i, task)`` only: asking for more rows never changes the others. A row holds its
task's name, so that the metrics `task` and `first_step` can check an answer, whichever of the right ones it is.
"""

from __future__ import annotations

import importlib
import random
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from stepjepa.config.option import check_fields, option, options_of
from stepjepa.config.values import did_you_mean
from stepjepa.errors import ConfigError

GROUP = "task"  # of the tasks' options
HELD_OUT = 1_000_003  # from the seed of the train rows to that of the held-out ones
TRIES = 1000  # for an instance that the options admit
Row = dict[str, Any]

TASKS = {  # name -> module:class in this package
    "arithmetic": "arithmetic:Arithmetic",
    "path_star": "puzzles:PathStar",
    "shortest_path": "puzzles:ShortestPath",
    "a5": "puzzles:A5",
    "s5": "puzzles:S5",
    "countdown": "puzzles:Countdown",
}


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Generates rows, and says which answers to them are right. The fields set the difficulty.

    Attributes:
        name: a key of `TASKS`.
        metric: the metric that counts right answers.
        separator: stands between the steps of a solution.

    Raises:
        ConfigError: a value that cannot be used.
    """

    system_prompt: str | None = option(None, "Content of a system message in front of every row.", GROUP)

    name: ClassVar[str]
    metric: ClassVar[str] = "task"
    separator: ClassVar[str] = " "

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def row(self, rng: random.Random) -> Row | None:
        """One row, from `chat`; None for another try."""

    @classmethod
    def solves(cls, row: Mapping[str, Any], answer: str) -> bool:
        """Whether an answer is right; any right one, where there are several."""
        return answer.split() == row["messages"][-1]["content"].split()

    @classmethod
    def begins(cls, row: Mapping[str, Any], answer: str) -> bool:
        """Whether the first step of an answer is right."""
        first, known = (text.split(cls.separator)[0] for text in (answer.strip(), row["messages"][-1]["content"]))
        return first.strip() == known

    @classmethod
    def instance(cls, row: Mapping[str, Any]) -> Hashable:
        """What two rows that ask the same have in common."""
        return str(row["question"])

    def chat(self, question: str, steps: Sequence[str], ground_truth: str) -> Row:
        """A row: messages (system if there is one, user, assistant), question, ground_truth, total_steps, task; and steps,
        unless blank lines divide them."""
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": self.separator.join(steps)}]
        if self.system_prompt is not None:
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        row = {"messages": messages, "question": question, "ground_truth": ground_truth, "total_steps": len(steps)}
        return {**row, "task": self.name} | ({} if self.separator == "\n\n" else {"steps": list(steps)})


def task_class(name: str) -> type[Task]:
    """The class of a task; ConfigError for an unknown name."""
    if name not in TASKS:
        raise ConfigError(f"unknown task {name!r}{did_you_mean(name, TASKS)} (known: {', '.join(TASKS)})")
    module, _, found = TASKS[name].partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), found)  # type: ignore[no-any-return]


def make_task(name: str, **options: Any) -> Task:
    """A task with these options; ConfigError for an unknown name or option, or a value that cannot be used."""
    kind = task_class(name)
    for key in options:
        if key not in (known := options_of(kind)):
            raise ConfigError(f"the task {name} has no option {key!r}{did_you_mean(key, known)}")
    return kind(**options)


def generate_rows(n: int, seed: int = 0, task: Task | None = None, start: int = 0) -> list[Row]:
    """Rows ``start .. start + n - 1`` of a seed, as `Task.chat` describes them. Row i is the same whatever n and start are.

    Args:
        seed: names an endless sequence of rows; any integer.
        task: arithmetic with its defaults when None.

    Raises:
        ConfigError: the options of the task admit no instance.
    """
    task, rows = task or make_task("arithmetic"), list[Row]()
    for index in range(start, start + n):
        rng = random.Random(f"{seed}:{index}")
        row = next((row for _ in range(TRIES) if (row := task.row(rng)) is not None), None)
        if row is None:
            raise ConfigError(f"no instance of {task} is found; make it easier")
        rows.append(row)
    return rows


def generate_split(
    n_train: int, n_test: int, seed: int = 0, task: Task | None = None, test_task: Task | None = None
) -> tuple[list[Row], list[Row]]:
    """Train rows and exactly `n_test` test rows, no instance of the test among those of training or twice.

    Args:
        seed: of the train rows, which are ``generate_rows(n_train, seed, task)``; that of the test is ``seed + HELD_OUT``.
        task: arithmetic with its defaults when None; `test_task`: of the test rows, the same when None.
    """
    task = task or make_task("arithmetic")
    train = generate_rows(n_train, seed, task)
    return train, generate_unseen(n_test, seed + HELD_OUT, test_task or task, {task.instance(row) for row in train})


def generate_unseen(n: int, seed: int, task: Task, seen: set[Hashable]) -> list[Row]:
    """The first `n` rows of a seed whose instances are not in `seen`, which takes them up; ConfigError where the task has
    too few."""
    rows = list[Row]()
    for drawn in range(21 * n + len(seen) + TRIES):
        if len(rows) == n:
            return rows
        (row,) = generate_rows(1, seed, task, start=drawn)
        if (instance := task.instance(row)) not in seen:
            seen.add(instance)
            rows.append(row)
    raise ConfigError(
        f"found only {len(rows)} of {n} held-out rows that are new; make {task.name} larger, or ask for fewer"
    )
