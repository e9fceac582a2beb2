"""`exact` and `prefix` compare texts, `rouge` and `bleu` count what they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from stepjepa.errors import ConfigError
from stepjepa.evaluation.metrics.registry import Metric, Verdict, check_one_of

_Variant = Literal["rouge1", "rouge2", "rougeL", "rougeLsum"]


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
    """F measure of ROUGE, by the package rouge-score.

    Attributes:
        variant: rouge1, rouge2 (words, pairs of words), rougeL (longest common subsequence), rougeLsum (that by lines).
        stem: whether English words are compared by their stems.
    """

    variant: _Variant = "rougeL"
    stem: bool = False
    _scorer: Any = field(init=False, repr=False, compare=False)

    name: ClassVar[str] = "rouge"
    kind: ClassVar[Literal["accuracy", "score"]] = "score"

    def __post_init__(self) -> None:
        check_one_of("variant", self.variant, get_args(_Variant))
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

    Attributes:
        tokenize: sacrebleu's tokenizer: 13a (its default), intl, zh, ja-mecab, char, none and others.
        lowercase: whether letter case is ignored.
    """

    tokenize: str = "13a"
    lowercase: bool = False
    _sentence: Any = field(init=False, repr=False, compare=False)
    _corpus: Any = field(init=False, repr=False, compare=False)

    name: ClassVar[str] = "bleu"
    kind: ClassVar[Literal["accuracy", "score"]] = "score"

    def __post_init__(self) -> None:
        try:
            from sacrebleu.metrics import BLEU
        except ImportError:
            raise ConfigError("the metric bleu needs the package sacrebleu: pip install 'stepjepa[eval]'") from None
        check_one_of("tokenize", self.tokenize, sorted(BLEU.TOKENIZERS))
        settings: Any = {"tokenize": self.tokenize, "lowercase": self.lowercase}
        try:
            self._sentence, self._corpus = BLEU(**settings, effective_order=True), BLEU(**settings)
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
