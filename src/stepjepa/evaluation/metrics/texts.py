"""`exact` and `prefix` compare texts, `rouge` and `bleu` count what they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from stepjepa.config.option import option
from stepjepa.errors import ConfigError
from stepjepa.evaluation.metrics.registry import OPTIONS, Metric, Verdict


@dataclass(kw_only=True)
class Exact(Metric):
    """The generated text is the reference, but for white space around both."""

    name: ClassVar[str] = "exact"

    def score(self, generated: str, row: Mapping[str, Any]) -> Verdict:
        """1 where the texts are equal."""
        gold, answer = self.reference(row).strip(), generated.strip()
        return Verdict(float(answer == gold), gold, answer, "" if answer == gold else "another text")


@dataclass(kw_only=True)
class Prefix(Metric):
    """The generated text begins with the reference: the published `--startswith`.

    Published: the response is stripped and must start with the assistant message, character by character. What follows does
    not count, so `[a-z]+` is right for the reference `[a-z]`. White space around the reference is stripped here too; as
    published, a reference that ends in some could never be matched.
    """

    name: ClassVar[str] = "prefix"

    def score(self, generated: str, row: Mapping[str, Any]) -> Verdict:
        """1 where the text starts with the reference."""
        gold, answer = self.reference(row).strip(), generated.strip()
        begins = answer.startswith(gold)
        return Verdict(float(begins), gold, answer, "" if begins else "begins otherwise")


@dataclass(kw_only=True)
class Rouge(Metric):
    """F measure of ROUGE, by the package rouge-score: of words (rouge1), pairs of words (rouge2), the longest common
    subsequence (rougeL), or that by lines (rougeLsum)."""

    variant: Literal["rouge1", "rouge2", "rougeL", "rougeLsum"] = option("rougeL", "What is counted.", OPTIONS)
    stem: bool = option(False, "Compare English words by their stems.", OPTIONS)

    name: ClassVar[str] = "rouge"
    kind: ClassVar[Literal["accuracy", "score"]] = "score"

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            from rouge_score.rouge_scorer import RougeScorer
        except ImportError:
            raise ConfigError("the metric rouge needs the package rouge-score: pip install 'stepjepa[eval]'") from None
        self._scorer = RougeScorer([self.variant], use_stemmer=self.stem)

    def score(self, generated: str, row: Mapping[str, Any]) -> Verdict:
        """The F measure."""
        gold, answer = self.reference(row).strip(), generated.strip()
        return Verdict(float(self._scorer.score(gold, answer)[self.variant].fmeasure), gold, answer)


@dataclass(kw_only=True)
class Bleu(Metric):
    """BLEU by the package sacrebleu, 0 to 1.

    A row's score is sentence BLEU with smoothing and effective order; papers report `corpus_score`, which is not its mean.
    """

    tokenize: str = option("13a", "Sacrebleu's tokenizer: 13a, intl, zh, ja-mecab, char, none and others.", OPTIONS)
    lowercase: bool = option(False, "Ignore letter case.", OPTIONS)

    name: ClassVar[str] = "bleu"
    kind: ClassVar[Literal["accuracy", "score"]] = "score"

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            from sacrebleu.metrics import BLEU
        except ImportError:
            raise ConfigError("the metric bleu needs the package sacrebleu: pip install 'stepjepa[eval]'") from None
        if self.tokenize not in BLEU.TOKENIZERS:
            raise ConfigError(f"tokenize is {self.tokenize!r}; known: {', '.join(sorted(BLEU.TOKENIZERS))}")
        bleu: Any = partial(BLEU, tokenize=self.tokenize, lowercase=self.lowercase)
        try:
            self._sentence, self._corpus = bleu(effective_order=True), bleu()
        except (ImportError, RuntimeError) as error:  # a tokenizer that needs a package of its own
            raise ConfigError(f"tokenize {self.tokenize!r}: {error}") from None

    def score(self, generated: str, row: Mapping[str, Any]) -> Verdict:
        """Sentence BLEU."""
        gold, answer = self.reference(row).strip(), generated.strip()
        return Verdict(_share(self._sentence.sentence_score(answer, [gold]).score), gold, answer)

    def corpus_score(self, generated: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> float | None:
        """Corpus BLEU; None without any text."""
        if not generated:
            return None
        golds = [self.reference(row).strip() for row in rows]
        return _share(self._corpus.corpus_score([text.strip() for text in generated], [golds]).score)


def _share(percent: float) -> float:
    return min(percent / 100, 1.0)  # sacrebleu gives 100.00000000000004
