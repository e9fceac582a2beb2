"""Built-in tasks: seeded generators of chat rows whose options set the difficulty.

Row ``i`` of seed ``s`` depends only on ``(s, i, task)``: more rows never change the others. A row contains the name of its
task, so that the metrics `task` and `first_step` can check an answer.

- `Arithmetic`: word problems of several steps with worked solutions, to compare training arms on small models.
- `PathStar`: paths in a graph where only the first step is a decision.
- `A5`: the word problem of a group, which is inherently sequential.
"""

from __future__ import annotations

import math
import operator
import random
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, ClassVar

from stepjepa.config.option import Names, check_fields, option
from stepjepa.config.values import did_you_mean
from stepjepa.data.answers import answers_match, final_answer
from stepjepa.data.columns import Row
from stepjepa.errors import ConfigError

# The group of the tasks' options.
GROUP = "task"
# The difference between the seeds of the held-out rows and of the training rows.
HELD_OUT = 1_000_003
# Further rows that `generate_unseen` tries, so that a small request does not give up early.
TRIES = 1000


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Generates rows, and checks answers to them. The fields set the difficulty.

    Attributes:
        name: a key of `TASKS`.
        metric: the metric that counts correct answers.
        separator: the text between the steps of a solution.

    Raises:
        ConfigError: a value that cannot be used.
    """

    name: ClassVar[str]
    metric: ClassVar[str] = "task"
    separator: ClassVar[str] = " "

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def row(self, rng: random.Random) -> Row:
        """Generate a row with `chat`."""

    @classmethod
    def solves(cls, row: Row, answer: str) -> bool:
        """Whether an answer is correct."""
        return answer.split() == _solution(row).split()

    @classmethod
    def begins(cls, row: Row, answer: str) -> bool:
        """Whether the first step of an answer is correct."""
        first_step = answer.strip().split(cls.separator)[0]
        return first_step.strip() == _solution(row).split(cls.separator)[0]

    @classmethod
    def instance(cls, row: Row) -> Hashable:
        """Return a key that is equal for two rows with the same question."""
        return str(row["question"])

    def chat(self, question: str, steps: Sequence[str], ground_truth: str) -> Row:
        """Build a row: messages (user, assistant), question, ground_truth, total_steps, task; and steps, unless blank lines
        separate them."""
        messages = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": self.separator.join(steps)},
        ]
        row = {
            "messages": messages,
            "question": question,
            "ground_truth": ground_truth,
            "total_steps": len(steps),
            "task": self.name,
        }
        # The default splitter cuts at blank lines anyway.
        if self.separator != "\n\n":
            row["steps"] = list(steps)
        return row


def _solution(row: Row) -> str:
    return str(row["messages"][-1]["content"])


_WOMEN = "Mia Lena Ruth Aisha Nora Clara Mei Zoe".split()
_MEN = "Ben Omar Tom Leo Ivan Hugo Sam Raj".split()
_PEOPLE = [
    who for pair in zip(_WOMEN, _MEN, strict=True) for who in zip(pair, ("She", "He"), strict=True)
]
# Every plural is the singular and an s, which `row` removes for a single object.
_OBJECTS = (
    "apples books coins marbles stamps cards pens shells stickers beads cookies buttons bricks stones balls flowers"
).split()
_OPENINGS = (
    "{name} has {value} {things}.",
    "{name} starts with {value} {things}.",
    "At first {name} owns {value} {things}.",
    "{name} keeps {value} {things} in a box.",
)
_QUESTIONS = (
    "How many {objects} does {name} have now?",
    "How many {objects} are there in the end?",
    "What is the number of {objects} now?",
)
# Each event: its sentence in the question, and the beginning of its step. A step never contains a name or an object.
_EVENTS = {
    "add": (
        ("{pronoun} buys {n} more.", "Buying {n} more gives"),
        ("{pronoun} finds {n}.", "Finding {n} gives"),
        ("{pronoun} gets {n} from {friend}.", "Getting {n} gives"),
        ("{friend} brings {n} more.", "Bringing {n} more gives"),
    ),
    "sub": (
        ("{pronoun} gives {n} to {friend}.", "Giving away {n} leaves"),
        ("{pronoun} loses {n}.", "Losing {n} leaves"),
        ("{pronoun} sells {n}.", "Selling {n} leaves"),
        ("{friend} takes {n} away.", "Taking away {n} leaves"),
    ),
    "mul": (
        ("{pronoun} then has {n} times as many.", "Having {n} times as many makes"),
        ("The collection grows to {n} times its size.", "Growing to {n} times the size makes"),
    ),
}
_LARGEST_OPERAND, _LARGEST_FACTOR = 20, 3
_OPERATIONS = {
    "add": ("+", operator.add),
    "sub": ("-", operator.sub),
    "mul": ("*", operator.mul),
}


@dataclass(frozen=True, kw_only=True)
class Arithmetic(Task):
    r"""Word problems. S steps are S - 1 operations and a sentence with the answer; the number of steps is uniformly
    distributed.

        user       Mia has 12 apples. She buys 5 more. She gives 3 to Ben. How many apples does Mia have now?
        assistant  Buying 5 more gives 12 + 5 = 17.

                   Giving away 3 leaves 17 - 3 = 14.

                   The answer is \boxed{14}.

    Numbers are log-uniform and the number of operations is uniform, so accuracy grows smoothly with skill. Names and objects
    appear only in the question, and the question determines the solution.
    """

    min_steps: int = option(2, "Minimum number of steps in a solution.", GROUP, at_least=2)
    max_steps: int = option(6, "Maximum number of steps in a solution.", GROUP)
    max_number: int = option(99, "Largest number in a question or solution.", GROUP, at_least=2)

    name: ClassVar[str] = "arithmetic"
    metric: ClassVar[str] = "gsm8k"
    separator: ClassVar[str] = "\n\n"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_steps < self.min_steps:
            raise ConfigError(
                f"{_NAME.max_steps} ({self.max_steps}) must not be below {_NAME.min_steps} ({self.min_steps})"
            )

    @classmethod
    def solves(cls, row: Row, answer: str) -> bool:
        """Whether the final answer equals that of the row."""
        return answers_match(final_answer(answer), row["ground_truth"])

    def row(self, rng: random.Random) -> Row:
        """Generate a problem."""
        length = rng.randint(self.min_steps, self.max_steps) - 1
        start, chain = self._chain(rng, length)
        # The order of these draws is fixed: another order would change the rows of every seed.
        (name, pronoun), (friend, _) = rng.sample(_PEOPLE, 2)
        words = {
            "name": name,
            "pronoun": pronoun,
            "friend": friend,
            "objects": rng.choice(_OBJECTS),
        }
        things = words["objects"][:-1] if start == 1 else words["objects"]
        sentences = [rng.choice(_OPENINGS).format(value=start, things=things, **words)]
        steps = []
        value = start
        for kind, operand, result in chain:
            event, reasoning = rng.choice(_EVENTS[kind])
            sentence = event.format(n=operand, **words)
            sentences.append(sentence)
            sign, _ = _OPERATIONS[kind]
            beginning = reasoning.format(n=operand)
            steps.append(f"{beginning} {value} {sign} {operand} = {result}.")
            value = result
        question = rng.choice(_QUESTIONS).format(**words)
        sentences.append(question)
        steps.append(f"The answer is \\boxed{{{value}}}.")
        return self.chat(" ".join(sentences), steps, str(value))

    def _chain(self, rng: random.Random, length: int) -> tuple[int, list[tuple[str, int, int]]]:
        """A start value and `length` operations (kind, operand, result) that stay within 1 .. max_number."""
        start = value = _log_uniform(rng, 1, self.max_number)
        chain: list[tuple[str, int, int]] = []
        for _ in range(length):
            # Addition or subtraction is always possible, as max_number is at least 2.
            kind = rng.choice([kind for kind in _OPERATIONS if self._operands(kind, value)])
            operands = self._operands(kind, value)
            operand = (
                rng.choice(operands)
                if kind == "mul"
                else _log_uniform(rng, operands[0], operands[-1])
            )
            value = _OPERATIONS[kind][1](value, operand)
            chain.append((kind, operand, value))
        return start, chain

    def _operands(self, kind: str, value: int) -> Sequence[int]:
        """The operands, ascending, with which `kind` keeps the value within 1 .. max_number."""
        if kind == "add":
            return range(1, min(_LARGEST_OPERAND, self.max_number - value) + 1)
        if kind == "sub":
            return range(1, min(_LARGEST_OPERAND, value - 1) + 1)
        return range(2, min(_LARGEST_FACTOR, self.max_number // value) + 1)


def _log_uniform(rng: random.Random, low: int, high: int) -> int:
    """An integer in low .. high; every order of magnitude is about equally likely."""
    exponent = rng.uniform(math.log(low), math.log(high + 1))
    return min(high, int(math.exp(exponent)))


@dataclass(frozen=True, kw_only=True)
class PathStar(Task):
    """A star of arms of equal length that share their first node, the start; the goal is the end of an arm (Bachmann and
    Nagarajan 2024). The question lists the edges, then start and goal; the answer is the path after the start, one step per
    node. Only the first step is a decision: the edges determine each later node.

        user       C A | B F | B C | F G : B G     (B is the centre of two arms)
        assistant  F G
    """

    path_length: int = option(
        5, "Number of nodes of the path, including start and goal.", GROUP, at_least=3
    )
    degree: int = option(2, "Number of arms of the star.", GROUP, at_least=2)
    nodes: int | None = option(
        None,
        "Number of names to sample the nodes from. Default: as many as the star has nodes.",
        GROUP,
        at_least=1,
    )

    name: ClassVar[str] = "path_star"

    @property
    def size(self) -> int:
        """Nodes of the star."""
        return self.degree * (self.path_length - 1) + 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nodes is not None and self.nodes < self.size:
            raise ConfigError(
                f"{_STAR.nodes} is {self.nodes}, but the star needs at least {self.size}"
            )

    def row(self, rng: random.Random) -> Row:
        """Generate a star."""
        names = [_node_name(index) for index in range(self.nodes or self.size)]
        start, *outer = rng.sample(names, self.size)
        arms = []
        edges: list[tuple[str, str]] = []
        for first in range(self.degree):
            arm = outer[first :: self.degree]
            arms.append(arm)
            edges += pairwise([start, *arm])
        shuffled = rng.sample(edges, len(edges))
        listed = " | ".join(map(" ".join, shuffled))
        # Nodes are random names and edges are shuffled, so the first arm is as good as any.
        steps = arms[0]
        goal = steps[-1]
        return self.chat(f"{listed} : {start} {goal}", steps, " ".join(steps))

    @classmethod
    def instance(cls, row: Row) -> Hashable:
        """The edges, in any order, with start and goal."""
        edges, _, asked = row["question"].partition(" : ")
        return frozenset(edges.split(" | ")), asked


def _node_name(index: int) -> str:
    """A to Z, then AA, AB, ..."""
    prefix, letter = divmod(index, 26)
    return (chr(64 + prefix) if prefix else "") + chr(65 + letter)


_LETTERS = "abcde"


@dataclass(frozen=True, kw_only=True)
class A5(Task):
    """Word problems of the 60 even permutations of five letters: what is the order of the letters after these permutations?

        user       cabde bcdea cabde        (each symbol takes the letters a b c d e to this order)
        assistant  cabde abdec dabec        (the order after each symbol, one step per symbol)

    A5 is the smallest group whose word problem a transformer of fixed depth is believed not to solve in one pass for all
    lengths (Merrill, Petty and Sabharwal 2024, arXiv:2404.08819).
    """

    length: int = option(12, "Number of symbols in a word.", GROUP, at_least=1)
    symbols: int = option(
        4,
        "Number of different symbols; the first two generate the group.",
        GROUP,
        at_least=2,
        at_most=60,
    )
    every: int = option(
        1,
        "The answer lists the order of the letters after every N-th symbol, and the last order.",
        GROUP,
        at_least=1,
    )

    name: ClassVar[str] = "a5"

    def row(self, rng: random.Random) -> Row:
        """Generate a word and the orders after its symbols."""
        # The length is fixed, but drawing it advances the generator: without that, the rows would differ from earlier
        # versions'.
        length = rng.randint(self.length, self.length)
        word = rng.choices(even_permutations()[: self.symbols], k=length)
        _, *orders = accumulate(word, _permuted, initial=_LETTERS)
        answer = orders[-1]
        # The last order is the answer, even if it is not due.
        steps = [*orders[self.every - 1 : -1 : self.every], answer]
        question = " ".join(word)
        return self.chat(question, steps, answer)

    @classmethod
    def solves(cls, row: Row, answer: str) -> bool:
        """Whether the answer ends with the last order."""
        return answer.split()[-1:] == [row["ground_truth"]]


def _permuted(order: str, symbol: str) -> str:
    return "".join(order[_LETTERS.index(letter)] for letter in symbol)


@cache
def even_permutations() -> list[str]:
    """Return the group that two permutations generate. These come first, and the identity comes last."""
    generators = ("cabde", "bcdea")
    group = [*generators]
    # A breadth-first search: the list grows during the loop, until no product is new.
    for element in group:
        for symbol in generators:
            product = _permuted(element, symbol)
            if product not in group:
                group.append(product)
    group.remove(_LETTERS)
    return [*group, _LETTERS]


_NAME, _STAR = Names(Arithmetic), Names(PathStar)
TASKS: dict[str, type[Task]] = {task.name: task for task in (Arithmetic, PathStar, A5)}


def task_class(name: str) -> type[Task]:
    """Return the class of a task; ConfigError for an unknown name."""
    if name not in TASKS:
        raise ConfigError(
            f"unknown task {name!r}{did_you_mean(name, TASKS)} (known: {', '.join(TASKS)})"
        )
    return TASKS[name]


def make_task(name: str, **options: Any) -> Task:
    """Make a task with options; ConfigError for an unknown name, or a value that cannot be used."""
    return task_class(name)(**options)


def generate_rows(n: int, seed: int = 0, task: Task | None = None, start: int = 0) -> list[Row]:
    """Generate rows ``start .. start + n - 1`` of a seed, see `Task.chat`. Row i depends on neither n nor start.

    Args:
        seed: any integer; it determines an endless sequence of rows.
        task: arithmetic with its defaults if None.

    Raises:
        ConfigError: the options of the task admit no instance.
    """
    task = task or Arithmetic()
    # A string seeds the generator without hash(), which differs in every process.
    return [task.row(random.Random(f"{seed}:{index}")) for index in range(start, start + n)]


def generate_split(
    n_train: int,
    n_test: int,
    seed: int = 0,
    task: Task | None = None,
    test_task: Task | None = None,
) -> tuple[list[Row], list[Row]]:
    """Generate training rows and exactly `n_test` test rows. No test question occurs in training or occurs twice.

    Args:
        seed: of the training rows, which are ``generate_rows(n_train, seed, task)``; test rows have ``seed + HELD_OUT``.
        task: arithmetic with its defaults if None; `test_task`: the task of the test rows, `task` if None.
    """
    task = task or Arithmetic()
    train = generate_rows(n_train, seed, task)
    seen = {task.instance(row) for row in train}
    return train, generate_unseen(n_test, seed + HELD_OUT, test_task or task, seen)


def generate_unseen(n: int, seed: int, task: Task, seen: set[Hashable]) -> list[Row]:
    """Generate the first `n` rows of a seed whose instances are not in `seen`, and add them to it; ConfigError if the task
    has too few."""
    rows: list[Row] = []
    # A small task may have no new row left, so the search is bounded.
    for index in range(21 * n + len(seen) + TRIES):
        if len(rows) == n:
            return rows
        (row,) = generate_rows(1, seed, task, start=index)
        instance = task.instance(row)
        if instance not in seen:
            seen.add(instance)
            rows.append(row)
    raise ConfigError(
        f"found only {len(rows)} of {n} held-out rows that are new; enlarge the task {task.name}, or ask for fewer rows"
    )
