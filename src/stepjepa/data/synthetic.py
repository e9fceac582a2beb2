"""Built-in data: multi-step arithmetic word problems with worked solutions.

A problem is a short story in which one quantity changes a few times; its solution is one sentence per change
and a last sentence with the boxed result, separated by blank lines:

    user       Mia has 12 apples. She buys 5 more. She gives 3 to Ben. How many apples does Mia have now?
    assistant  Buying 5 more gives 12 + 5 = 17.

               Giving away 3 leaves 17 - 3 = 14.

               The answer is \\boxed{14}.

The generator is made for comparing training arms on small models. Names and objects stay in the question, number sizes are
log-uniform and the number of operations uniform, so accuracy grows smoothly with skill; the solution is a function of the
question. Row ``i`` of seed ``s`` depends on ``(s, i, config)`` only: asking for more rows never changes the others.
"""

import math
import operator
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stepjepa.config.option import Names

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

_MAX_TRIES = 1000


@dataclass(frozen=True)
class ArithmeticConfig:
    """How hard the problems are.

    Attributes:
        min_steps: Fewest steps in a solution. S steps are S - 1 operations and the sentence with the answer.
        max_steps: Most steps in a solution; the number of steps is uniform between the two.
        max_number: No number of the question or the solution is larger.
        max_operand: Largest number added or taken away in one step.
        max_factor: Largest factor or divisor (the smallest is 2).
        operations: The kinds of operation that occur, equally often where the running value allows them:
            "add", "sub", "mul", "div". A kind named twice occurs twice as often.
        system_prompt: Content of a system message in front of every row; None leaves that message out.

    Raises:
        ValueError: When a value is out of range or an operation is unknown.
    """

    min_steps: int = 2
    max_steps: int = 6
    max_number: int = 99
    max_operand: int = 20
    max_factor: int = 3
    operations: tuple[str, ...] = ("add", "sub", "mul")
    system_prompt: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.operations, str):
            raise ValueError(f"operations must be a list such as ['add', 'sub'], got {self.operations!r}")
        # Lists arrive from YAML; a tuple keeps the frozen config hashable.
        object.__setattr__(self, "operations", tuple(self.operations))
        # A solution of two steps is one operation and the answer.
        for name, least in {"min_steps": 2, "max_number": 2, "max_operand": 1, "max_factor": 2}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.max_steps < self.min_steps:
            raise ValueError(
                f"{_NAME.max_steps} ({self.max_steps}) must not be below {_NAME.min_steps} ({self.min_steps})"
            )
        unknown = [name for name in self.operations if name not in _OPERATIONS]
        if unknown or not self.operations:
            what = f"unknown operation {unknown[0]!r} in operations" if unknown else "operations is empty"
            raise ValueError(f"{what}; known: {', '.join(_OPERATIONS)}")


_NAME = Names(ArithmeticConfig)


def generate_rows(
    n: int, seed: int = 0, config: ArithmeticConfig | None = None, start: int = 0
) -> list[dict[str, Any]]:
    """Chat rows ``start .. start + n - 1`` of a seed.

    Args:
        n: Number of rows.
        seed: Names an endless sequence of rows; any integer.
        config: Difficulty; the defaults of `ArithmeticConfig` when None.
        start: Index of the first row.

    Returns:
        Rows with "messages" (system if configured, user, assistant), "question", "ground_truth" and
        "total_steps". Row i is the same whatever n and start are.

    Raises:
        ValueError: When the configuration admits no chain of operations of the length drawn.
    """
    config = config or ArithmeticConfig()
    return [_row(random.Random(f"{seed}:{index}"), config) for index in range(start, start + n)]


def generate_split(
    n_train: int,
    n_test: int,
    seed: int = 0,
    config: ArithmeticConfig | None = None,
    test_seed: int | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Train rows and exactly `n_test` test rows, no test question among the train questions.

    Args:
        n_train: Number of train rows; they are ``generate_rows(n_train, seed, config)``.
        n_test: Number of test rows.
        seed: Seed of the train rows.
        config: Difficulty; the defaults of `ArithmeticConfig` when None.
        test_seed: Seed of the test rows; ``seed + 1_000_003`` when None.

    Raises:
        ValueError: When the two seeds are equal, or the configuration is so narrow that questions run out.
    """
    test_seed = seed + 1_000_003 if test_seed is None else test_seed
    if test_seed == seed:
        raise ValueError(f"seed and test_seed are both {seed}; the test rows would be the train rows")
    train, test = generate_rows(n_train, seed, config), list[dict[str, Any]]()
    seen = {row["question"] for row in train}
    for drawn in range(20 * n_test + 1000 + n_test):
        if len(test) == n_test:
            return train, test
        (row,) = generate_rows(1, test_seed, config, start=drawn)
        if row["question"] not in seen:
            seen.add(row["question"])
            test.append(row)
    raise ValueError(
        f"found only {len(test)} of {n_test} test questions that are not in the train rows; "
        f"raise {_NAME.max_number}, {_NAME.max_operand} or {_NAME.max_steps}, or ask for fewer rows"
    )


def _row(rng: random.Random, config: ArithmeticConfig) -> dict[str, Any]:
    start, chain = _draw_chain(rng, rng.randint(config.min_steps, config.max_steps) - 1, config)
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
    question, solution = " ".join(sentences), "\n\n".join(steps)
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": solution}]
    if config.system_prompt is not None:
        messages.insert(0, {"role": "system", "content": config.system_prompt})
    return {"messages": messages, "question": question, "ground_truth": str(value), "total_steps": len(steps)}


def _draw_chain(
    rng: random.Random, length: int, config: ArithmeticConfig
) -> tuple[int, Sequence[tuple[str, int, int]]]:
    """A start value and `length` operations (kind, operand, result) that stay within 1 .. max_number.

    Some values leave no operation open (1 with "sub" only), so a chain that runs into one is drawn again.
    """
    for _ in range(_MAX_TRIES):
        start = value = _log_uniform(rng, 1, config.max_number)
        chain: list[tuple[str, int, int]] = []
        while len(chain) < length:
            options = [kind for kind in config.operations if _operands(kind, value, config)]
            if not options:
                break
            kind = rng.choice(options)
            operands = _operands(kind, value, config)
            small = kind in ("add", "sub")
            operand = _log_uniform(rng, operands[0], operands[-1]) if small else rng.choice(operands)
            value = _OPERATIONS[kind][1](value, operand)
            chain.append((kind, operand, value))
        if len(chain) == length:
            return start, chain
    raise ValueError(
        f"no chain of {length} operations found with operations={config.operations} and numbers up to "
        f"{config.max_number}; raise {_NAME.max_number}, lower {_NAME.max_steps} or allow more operations"
    )


def _operands(kind: str, value: int, config: ArithmeticConfig) -> Sequence[int]:
    """The operands, ascending, with which `kind` keeps the value exact and within 1 .. max_number."""
    if kind == "add":
        return range(1, min(config.max_operand, config.max_number - value) + 1)
    if kind == "sub":
        return range(1, min(config.max_operand, value - 1) + 1)
    factors = range(2, config.max_factor + 1)
    if kind == "mul":
        return [factor for factor in factors if value * factor <= config.max_number]
    return [factor for factor in factors if value % factor == 0]


def _log_uniform(rng: random.Random, low: int, high: int) -> int:
    """An integer in low .. high, every factor of ten about equally likely."""
    return min(high, int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))
