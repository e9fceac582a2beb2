r"""`gsm8k`: the final answer is the same number, or the same words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from stepjepa.data.answers import answers_match, final_answer
from stepjepa.evaluation.metrics.base import Metric, Verdict

_LONGEST_BARE_ANSWER = 80


@dataclass(kw_only=True)
class FinalAnswer(Metric):
    r"""Compares final answers by the rules of `stepjepa.data.answers`.

    The generated text's answer is its last `\boxed{}`, else what follows `####`, else the number behind "the answer is",
    else its last number. The row's is its column `ground_truth`, else the final answer of `answer` or of the chat's last
    message.
    """

    name: ClassVar[str] = "gsm8k"
    columns: ClassVar[tuple[str, ...]] = ("ground_truth", "answer", "completion", "messages")

    def score(self, generated: str, row: Mapping[str, Any]) -> Verdict:
        """1 where the final answers match."""
        gold, answer = known_answer(self.reference(row)), final_answer(generated)
        if gold is None:
            return Verdict(0.0, None, answer, "the reference has no final answer")
        if answer is None:
            return Verdict(0.0, gold, None, "no answer found")
        if answers_match(answer, gold):
            return Verdict(1.0, gold, answer)
        return Verdict(0.0, gold, answer, "another answer")


def known_answer(reference: str) -> str | None:
    """The final answer of a reference: a short line without marks is one already."""
    bare = reference.strip()
    if "####" in bare or "boxed" in bare or "\n" in bare or len(bare) > _LONGEST_BARE_ANSWER:
        return final_answer(bare)
    return bare or None
