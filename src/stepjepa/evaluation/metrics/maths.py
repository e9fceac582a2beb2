r"""`math`: the same value or expression, by the package math-verify.

math-verify reads LaTeX with a grammar and compares with SymPy. It runs in a process of its own, because SymPy can compute
for ever (`9^{9^{9^9}}`), and reads LaTeX only: its reader of plain expressions is left out, as that hands text to `eval`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stepjepa.data.answers import final_answer, last_boxed
from stepjepa.data.numbers import number_of, plain_text
from stepjepa.errors import ConfigError
from stepjepa.evaluation.metrics.base import Metric, Verdict, check_positive
from stepjepa.evaluation.metrics.worker import Worker, WorkerError, WorkerTimeout

_LONGEST_BARE_ANSWER = 200
_TAIL = 2_000  # characters at the end of a text without a box in which formulas are looked for
_LONGEST = 2_000  # characters of an answer


@dataclass(kw_only=True)
class MathAnswer(Metric):
    r"""Compares final answers as mathematics: `\frac{1}{\sqrt{2}}` is `\frac{\sqrt{2}}{2}`, `(x+1)^2` is `x^2+2x+1`.

    The generated text's answer is its last `\boxed{}`, else its last formula between dollar signs or in `\( \)`, else its
    final answer as `gsm8k` finds it. The row's is in its column `ground_truth`, `answer` or `solution`, boxed or bare.
    Answers that are the same text or number by our own rules are right without further ado.

    Attributes:
        time_limit: seconds for one row; an answer that takes longer is wrong.
    """

    time_limit: float = 5.0
    _worker: Worker = field(init=False, repr=False, compare=False)

    name: ClassVar[str] = "math"
    columns: ClassVar[tuple[str, ...]] = ("ground_truth", "answer", "solution", "completion", "messages")

    def __post_init__(self) -> None:
        import importlib.util

        check_positive("time_limit", self.time_limit)
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError("the metric math needs the package math-verify: pip install 'stepjepa[math]'")
        self._worker = Worker("stepjepa.evaluation.metrics.maths_worker:same_value")

    def score(self, generated: str, row: Mapping[str, Any]) -> Verdict:
        """1 where the answers are equal."""
        gold, answer = _known(self.reference(row)), final_answer(generated)
        source = last_boxed(generated)
        if source is None and any(mark in generated for mark in ("$", "\\(", "\\[")):
            source = generated[-_TAIL:]
        elif answer is not None:
            source = _boxed(answer)
        if gold is None:
            return Verdict(0.0, None, answer, "the reference has no final answer")
        if source is None:
            return Verdict(0.0, gold, None, "no answer found")
        if answer is not None and _plainly_same(gold, answer):
            return Verdict(1.0, gold, answer)
        if max(len(gold), len(source)) > _LONGEST:
            return Verdict(0.0, gold, answer, f"longer than {_LONGEST} characters")
        try:
            same, read = self._worker.call(self.time_limit, gold=_boxed(gold), answer=source)
        except WorkerTimeout:
            return Verdict(0.0, gold, answer, f"not decided within {self.time_limit:g} s")
        except WorkerError as error:
            return Verdict(0.0, gold, answer, f"not decided: {error}")
        return Verdict(float(same), gold, read or answer, "" if same else "another answer")

    def close(self) -> None:
        """End math-verify's process."""
        self._worker.close()


def _known(reference: str) -> str | None:
    bare = reference.strip()
    boxed = last_boxed(bare)
    if boxed is not None:
        return boxed
    if "####" in bare or "\n" in bare or len(bare) > _LONGEST_BARE_ANSWER:
        return final_answer(bare)
    return bare


def _boxed(answer: str) -> str:
    return f"\\boxed{{{answer.strip().strip('$')}}}"


def _plainly_same(gold: str, answer: str) -> bool:
    """Whether two answers are the same signs, or the same number written without letters (`5m` may be a product)."""
    one, other = plain_text(gold), plain_text(answer)
    if one == other:
        return one != ""
    if any(map(str.isalpha, one + other)) or "%" in one + other:
        return False
    number = number_of(gold)
    return number is not None and number == number_of(answer)
