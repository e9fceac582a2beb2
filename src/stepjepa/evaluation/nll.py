"""The negative log-likelihood of the reference answers, token by token, as training computes its LM loss.

`answer_nll` covers all tokens of an answer, `content_nll` those without the end of turn, `end_nll` the end of turn alone.

Shapes: B chats of a batch, T tokens, D width, N labelled positions of a chat.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from stepjepa.config.option import Names
from stepjepa.data.columns import TEMPLATE_KWARGS
from stepjepa.data.encode import EncodeOptions, RowEncoder
from stepjepa.data.report import DataReport
from stepjepa.data.tokens import Prompter, kept_predictors
from stepjepa.data.types import Example
from stepjepa.errors import saying_out_of_memory
from stepjepa.evaluation.metrics import CONTENT_NLL, END_NLL, MODEL_METRICS, NLL
from stepjepa.evaluation.questions import QuestionSet
from stepjepa.evaluation.statistics import mean
from stepjepa.generation.local import eval_mode
from stepjepa.generation.options import GeneratorOptions
from stepjepa.modeling.forward import causal_lm, run_backbone
from stepjepa.modeling.load import max_positions
from stepjepa.modeling.parts import output_head, vocabulary_size

_NAME = Names(GeneratorOptions)
# Longer than any chat, for models without a limit on positions.
NO_LIMIT = 2**30


class AnswerLoss(NamedTuple):
    """Negative log-likelihood of the reference answer to question `row`: the sum in nats, and the number of tokens.

    `end_total` and `end_tokens` are the part of the end of turn; 0 if the answer was cut at `max_length`.
    """

    row: int
    total: float
    tokens: int
    end_total: float
    end_tokens: int

    def part(self, name: str) -> tuple[float, int]:
        """Sum and number of tokens for the metric `name`."""
        if name == END_NLL:
            return self.end_total, self.end_tokens
        if name == CONTENT_NLL:
            return self.total - self.end_total, self.tokens - self.end_tokens
        return self.total, self.tokens

    def of(self, name: str) -> float | None:
        """Nats per token; None without a token."""
        total, tokens = self.part(name)
        return total / tokens if tokens else None

    def values(self) -> dict[str, float | None]:
        """The stored values: every metric, and the numbers of tokens."""
        means = {name: self.of(name) for name in MODEL_METRICS}
        return {**means, "answer_tokens": self.tokens, "end_tokens": self.end_tokens}


class AnswerLikelihood:
    """Computes the likelihood of every answer and its end of turn; chats are encoded as in training with labels `assistant`.

    Args:
        model: a causal LM, PEFT models included. Its train/eval mode is restored afterwards.
        batch_size: chats per batch.
        vocabulary: V of the softmax, if predictor tokens follow it; None for all rows of the embedding.
        max_length: longest chat in tokens; longer ones are cut on the right and counted.

    Attributes:
        examples: index of a question -> its encoded chat.
        report: counts rows that cannot be used, and answers that were cut at `max_length`.

    Raises:
        ConfigError: the tokenizer cannot be used.
        DataError: no answer can be used.
    """

    def __init__(
        self,
        questions: QuestionSet,
        prompter: Prompter,
        model: torch.nn.Module,
        batch_size: int,
        vocabulary: int | None = None,
        max_length: int | None = None,
    ):
        self.prompter, self.model = prompter, model
        self.batch_size, self.vocabulary = batch_size, vocabulary
        # The encoder cuts at the model's own limit too: positions beyond it would fail or mean nothing.
        positions = max_positions(causal_lm(model)) or NO_LIMIT
        options = EncodeOptions(max_length=min(max_length or NO_LIMIT, positions))
        encoder = RowEncoder(
            questions.source, prompter.tokenizer, prompter.renderer, options, streams=False
        )
        rows = []
        for question in questions.questions:
            row = {"messages": question.chat, TEMPLATE_KWARGS: question.template_kwargs}
            rows.append((question.place, row))
        encoded = encoder(rows)
        # An answer that starts beyond `max_length` has no example.
        counted = zip(questions.questions, encoded.counts, strict=True)
        kept = [question.index for question, count in counted if count]
        encoded.report.require(kept, f"have an answer for {NLL}")
        self.examples: dict[int, Example] = dict(zip(kept, encoded.store, strict=True))
        self.report = encoded.report

    def compute(self) -> Iterator[list[AnswerLoss]]:
        """Yield the losses a batch at a time, the longest chats first.

        Raises:
            ConfigError: a batch does not fit into memory.
        """
        ends = self.prompter.stop_ids(None)
        # Similar lengths share a batch, which saves padding, and the largest batch fails at once if memory is short.
        order = sorted(self.examples, key=self._length, reverse=True)
        for begin in range(0, len(order), self.batch_size):
            batch = order[begin : begin + self.batch_size]
            examples = [self.examples[index] for index in batch]
            message = f"out of memory with {len(batch)} chats at once; lower --{_NAME.batch_size}"
            with saying_out_of_memory(message):
                losses = answer_losses(self.model, examples, self.vocabulary, ends)
            numbered = zip(batch, losses, strict=True)
            yield [AnswerLoss(index, *loss) for index, loss in numbered]

    def _length(self, index: int) -> int:
        return len(self.examples[index].trunk)


def answer_losses(
    model: torch.nn.Module,
    examples: Sequence[Example],
    vocabulary: int | None = None,
    ends: Sequence[int] = (),
) -> list[tuple[float, int, float, int]]:
    """Cross-entropy of each example: sum and number of its labelled tokens, then of those that are in `ends`.

    The rows are padded on the right and masked. Logits are computed at labelled positions only.
    """
    inner: Any = causal_lm(model)
    device = inner.get_input_embeddings().weight.device
    # The head of training, so that both compute the same loss.
    head = output_head(inner, vocabulary or vocabulary_size(inner))
    trunks = [torch.from_numpy(example.trunk.astype(np.int64)) for example in examples]
    ids_BT = pad_sequence(trunks, batch_first=True).to(device)
    mask_BT = pad_sequence([torch.ones_like(trunk) for trunk in trunks], batch_first=True).to(
        device
    )
    positions_BT = torch.arange(ids_BT.shape[1], device=device).expand_as(ids_BT)

    def loss_sum(states_TD: torch.Tensor, ids_T: torch.Tensor, places: np.ndarray) -> float:
        if not len(places):
            return 0.0
        # A token is predicted from the state before it.
        places_N = torch.from_numpy(places).to(device)
        return float(head.loss_sum(inner, states_TD[places_N - 1], ids_T[places_N]))

    losses = []
    with torch.inference_mode(), eval_mode(model):
        states_BTD = run_backbone(inner, ids_BT, mask_BT, positions_BT)[0]
        for states_TD, ids_T, example in zip(states_BTD, ids_BT, examples, strict=True):
            labelled = np.concatenate([np.arange(start, stop) for start, stop in example.labels])
            ending = labelled[np.isin(example.trunk[labelled], ends)]
            total = loss_sum(states_TD, ids_T, labelled)
            end_total = loss_sum(states_TD, ids_T, ending)
            losses.append((total, len(labelled), end_total, len(ending)))
    return losses


def softmax_size(model: torch.nn.Module, prompter: Prompter) -> int:
    """V of the LM softmax: the model's vocabulary without predictor tokens at its end."""
    # Training leaves these tokens out of the softmax. In the middle of the vocabulary they are ordinary entries.
    rows = vocabulary_size(causal_lm(model))
    kept = list(kept_predictors(prompter.tokenizer).values())
    return rows - len(kept) if kept == list(range(rows - len(kept), rows)) else rows


def summarise(losses: Sequence[AnswerLoss], report: DataReport, name: str = NLL) -> dict[str, Any]:
    """The metric `name`: mean per token, perplexity, and the mean over rows with its interval.

    Args:
        report: of the encoded rows.
    """
    parts = [loss.part(name) for loss in losses]
    tokens = sum(count for _, count in parts)
    # Tokens of a chat are not independent, so the interval is that of the mean over rows.
    value = math.fsum(part for part, _ in parts) / tokens if tokens else None
    rows = mean([part / count for part, count in parts if count])
    return {
        "kind": "loss",
        "value": value,
        # exp overflows above 709.
        "perplexity": None if value is None else math.exp(min(value, 700.0)),
        "row_mean": rows.value,
        "low": rows.low,
        "high": rows.high,
        "n": sum(1 for _, count in parts if count),
        "tokens": tokens,
        "answers_truncated": report.answers_truncated,
        "skipped": dict(report.rows_skipped),
    }
