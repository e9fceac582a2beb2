"""Arithmetic: word problems of several steps with worked solutions.

A problem is a short story in which one quantity changes a few times; its solution is one sentence per change
and a last sentence with the boxed result, separated by blank lines:

    user       Mia has 12 apples. She buys 5 more. She gives 3 to Ben. How many apples does Mia have now?
    assistant  Buying 5 more gives 12 + 5 = 17.

               Giving away 3 leaves 17 - 3 = 14.

               The answer is \\boxed{14}.

The generator is made for comparing training arms on small models. Names and objects stay in the question, number sizes are
log-uniform and the number of operations uniform, so accuracy grows smoothly with skill; the solution is a function of the
question.
"""

import math
import operator
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from stepjepa.config.option import Names, option
from stepjepa.data.answers import answers_match, final_answer
from stepjepa.data.tasks import GROUP, TRIES, Row, Task
from stepjepa.errors import ConfigError

_WOMEN = "Mia Lena Ruth Aisha Nora Clara Mei Zoe".split()
_MEN = "Ben Omar Tom Leo Ivan Hugo Sam Raj".split()
_PEOPLE = [who for pair in zip(_WOMEN, _MEN, strict=True) for who in zip(pair, ("She", "He"), strict=True)]
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

# Each event: what the question says, and how its step begins. A step never holds a name or an object.
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
    "div": (
        ("{pronoun} keeps one of {n} equal shares.", "Keeping one of {n} shares leaves"),
        ("Only one of every {n} remains.", "Leaving one of every {n} makes"),
    ),
}

_OPERATIONS = {
    "add": ("+", operator.add),
    "sub": ("-", operator.sub),
    "mul": ("*", operator.mul),
    "div": ("/", operator.floordiv),
}


@dataclass(frozen=True, kw_only=True)
class Arithmetic(Task):
    """Word problems. S steps are S - 1 operations and the sentence with the answer; the number of steps is uniform."""

    min_steps: int = option(2, "Fewest steps in a solution.", GROUP, at_least=2)
    max_steps: int = option(6, "Most steps in a solution.", GROUP)
    max_number: int = option(99, "No number of the question or the solution is larger.", GROUP, at_least=2)
    max_operand: int = option(20, "Largest number added or taken away in one step.", GROUP, at_least=1)
    max_factor: int = option(3, "Largest factor or divisor (the smallest is 2).", GROUP, at_least=2)
    operations: list[str] = option(
        ["add", "sub", "mul"],
        "Kinds of operation (add, sub, mul, div), equally frequent where possible; one named twice is twice as frequent.",
        GROUP,
    )

    name: ClassVar[str] = "arithmetic"
    metric: ClassVar[str] = "gsm8k"
    separator: ClassVar[str] = "\n\n"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.operations, str):
            raise ConfigError(f"operations must be a list such as ['add', 'sub'], got {self.operations!r}")
        if self.max_steps < self.min_steps:
            raise ConfigError(
                f"{_NAME.max_steps} ({self.max_steps}) must not be below {_NAME.min_steps} ({self.min_steps})"
            )
        unknown = [name for name in self.operations if name not in _OPERATIONS]
        if unknown or not self.operations:
            what = f"unknown operation {unknown[0]!r} in operations" if unknown else "operations is empty"
            raise ConfigError(f"{what}; known: {', '.join(_OPERATIONS)}")

    @classmethod
    def solves(cls, row: Mapping[str, Any], answer: str) -> bool:
        """Whether the final answer is that of the row."""
        return answers_match(final_answer(answer), row["ground_truth"])

    def row(self, rng: random.Random) -> Row:
        """A problem.

        Raises:
            ConfigError: no chain of operations of the length drawn is found.
        """
        start, chain = _draw_chain(rng, rng.randint(self.min_steps, self.max_steps) - 1, self)
        (name, pronoun), (friend, _) = rng.sample(_PEOPLE, 2)
        words = {"name": name, "pronoun": pronoun, "friend": friend, "objects": rng.choice(_OBJECTS)}
        # Every plural in the list is its singular and an s.
        things = words["objects"][:-1] if start == 1 else words["objects"]
        sentences = [rng.choice(_OPENINGS).format(value=start, things=things, **words)]
        steps, value = [], start
        for kind, operand, result in chain:
            told, reasoned = rng.choice(_EVENTS[kind])
            sentences.append(told.format(n=operand, **words))
            steps.append(f"{reasoned.format(n=operand)} {value} {_OPERATIONS[kind][0]} {operand} = {result}.")
            value = result
        sentences.append(rng.choice(_QUESTIONS).format(**words))
        steps.append(f"The answer is \\boxed{{{value}}}.")
        return self.chat(" ".join(sentences), steps, str(value))


_NAME = Names(Arithmetic)


def _draw_chain(rng: random.Random, length: int, task: Arithmetic) -> tuple[int, Sequence[tuple[str, int, int]]]:
    """A start value and `length` operations (kind, operand, result) that stay within 1 .. max_number.

    Some values leave no operation open (1 with "sub" only), so a chain that runs into one is drawn again.
    """
    for _ in range(TRIES):
        start = value = _log_uniform(rng, 1, task.max_number)
        chain: list[tuple[str, int, int]] = []
        while len(chain) < length:
            options = [kind for kind in task.operations if _operands(kind, value, task)]
            if not options:
                break
            kind = rng.choice(options)
            operands = _operands(kind, value, task)
            small = kind in ("add", "sub")
            operand = _log_uniform(rng, operands[0], operands[-1]) if small else rng.choice(operands)
            value = _OPERATIONS[kind][1](value, operand)
            chain.append((kind, operand, value))
        if len(chain) == length:
            return start, chain
    raise ConfigError(
        f"no chain of {length} operations found with operations={task.operations} and numbers up to "
        f"{task.max_number}; raise {_NAME.max_number}, lower {_NAME.max_steps} or allow more operations"
    )


def _operands(kind: str, value: int, task: Arithmetic) -> Sequence[int]:
    """The operands, ascending, with which `kind` keeps the value exact and within 1 .. max_number."""
    if kind == "add":
        return range(1, min(task.max_operand, task.max_number - value) + 1)
    if kind == "sub":
        return range(1, min(task.max_operand, value - 1) + 1)
    factors = range(2, task.max_factor + 1)
    if kind == "mul":
        return [factor for factor in factors if value * factor <= task.max_number]
    return [factor for factor in factors if value % factor == 0]


def _log_uniform(rng: random.Random, low: int, high: int) -> int:
    """An integer in low .. high, every factor of ten about equally likely."""
    return min(high, int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))
