"""The negative log-likelihood of the reference answers, token by token, as training computes its LM loss.

`answer_nll` covers all tokens of an answer, `content_nll` all but the end of turn, `end_nll` only the end of turn.

Shapes: B chats of a batch, T tokens, D width, N labelled positions of a chat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from stepjepa.config.option import Names
from stepjepa.data.columns import TEMPLATE_KWARGS
from stepjepa.data.encode import EncodeOptions, RowEncoder
from stepjepa.data.report import DataReport
from stepjepa.data.tokens import Prompter, kept_predictors
from stepjepa.data.types import Example
from stepjepa.errors import saying_out_of_memory
from stepjepa.evaluation.metrics.base import CONTENT_NLL, END_NLL, NLL
from stepjepa.evaluation.questions import QuestionSet
from stepjepa.evaluation.statistics import mean
from stepjepa.generation.local import eval_mode
from stepjepa.generation.options import GeneratorOptions
from stepjepa.modeling.forward import causal_lm, run_backbone
from stepjepa.modeling.load import max_positions
from stepjepa.modeling.parts import embedding_rows, output_head, vocabulary_size
from stepjepa.utils.files import Record
from stepjepa.utils.terminal import Bar

_NAME = Names(GeneratorOptions)
# Longer than any chat, for models without a limit on positions.
NO_LIMIT = 2**30


class TokenLoss(NamedTuple):
    """Negative log-likelihood of tokens: the sum in nats, and the number of tokens."""

    total: float
    tokens: int

    @property
    def mean(self) -> float | None:
        """Nats per token; None if there are no tokens."""
        return self.total / self.tokens if self.tokens else None


class Likelihoods(NamedTuple):
    """Likelihoods of the reference answers.

    Attributes:
        metrics: metric -> summary.
        rows: index of a question -> the values to store: every metric, and the numbers of tokens.
    """

    metrics: dict[str, Record]
    rows: dict[int, Record]


def likelihoods(
    questions: QuestionSet,
    names: Sequence[str],
    prompter: Prompter,
    model: nn.Module,
    batch_size: int,
    max_length: int | None,
    bar: Bar,
) -> Likelihoods:
    """Compute the metrics `names`; empty without names.

    Args:
        model: a causal LM, PEFT models included. Its train/eval mode is restored afterwards.
        max_length: longest chat in tokens; longer chats are truncated on the right and counted.

    Raises:
        ConfigError: the tokenizer cannot be used, or a batch does not fit into memory.
        DataError: no answer can be used.
    """
    if not names:
        return Likelihoods({}, {})
    examples, report = encode_answers(questions, prompter, model, max_length)
    vocabulary, ends = softmax_size(model, prompter), prompter.stop_ids(None)
    bar.begin("likelihoods", len(examples))
    # Sorting by length saves padding. The longest chats come first, so that a lack of memory shows at once.
    order = sorted(examples, key=lambda index: len(examples[index].trunk), reverse=True)
    computed: dict[int, dict[str, TokenLoss]] = {}
    for begin in range(0, len(order), batch_size):
        batch = order[begin : begin + batch_size]
        message = f"out of memory with {len(batch)} chats at once; lower --{_NAME.batch_size}"
        with saying_out_of_memory(message):
            losses = answer_losses(model, [examples[index] for index in batch], vocabulary, ends)
        computed.update(zip(batch, losses, strict=True))
        bar.step(len(batch))
    # Back in the order of the file.
    rows = dict[int, Record]()
    for index in examples:
        by_metric = computed[index]
        rows[index] = {name: loss.mean for name, loss in by_metric.items()}
        rows[index]["answer_tokens"] = by_metric[NLL].tokens
        rows[index]["end_tokens"] = by_metric[END_NLL].tokens
    summaries = {
        name: summarise([losses[name] for losses in computed.values()], report) for name in names
    }
    return Likelihoods(summaries, rows)


def encode_answers(
    questions: QuestionSet, prompter: Prompter, model: nn.Module, max_length: int | None
) -> tuple[dict[int, Example], DataReport]:
    """Encode the chats as in training with labels `assistant`.

    Returns:
        Index of a question -> its encoded chat, and the report on unusable rows and truncated answers.

    Raises:
        ConfigError, DataError: as for `likelihoods`.
    """
    # The encoder also truncates at the model's own limit, because positions beyond it fail or are untrained.
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
    return dict(zip(kept, encoded.store, strict=True)), encoded.report


def answer_losses(
    model: nn.Module, examples: Sequence[Example], vocabulary: int, ends: Sequence[int] = ()
) -> list[dict[str, TokenLoss]]:
    """Cross-entropy of the labelled tokens of each example, by metric.

    Args:
        vocabulary: V of the softmax.
        ends: the tokens that end a turn.

    The rows are padded on the right and masked. Logits are computed at labelled positions only.
    """
    inner: Any = causal_lm(model)
    device = embedding_rows(inner).device
    # The same output head as in training, so that the losses are equal.
    head = output_head(inner, vocabulary)
    trunks = [torch.from_numpy(example.trunk.astype(np.int64)) for example in examples]
    ids_BT = pad_sequence(trunks, batch_first=True).to(device)
    mask_BT = pad_sequence([torch.ones_like(trunk) for trunk in trunks], batch_first=True).to(
        device
    )
    positions_BT = torch.arange(ids_BT.shape[1], device=device).expand_as(ids_BT)

    def loss(states_TD: Tensor, ids_T: Tensor, places: np.ndarray) -> TokenLoss:
        # A token is predicted from the state before it.
        places_N = torch.from_numpy(places).to(device)
        total = head.loss_sum(inner, states_TD[places_N - 1], ids_T[places_N])
        return TokenLoss(float(total), len(places))

    losses = []
    with torch.inference_mode(), eval_mode(model):
        states_BTD = run_backbone(inner, ids_BT, mask_BT, positions_BT)[0]
        for states_TD, ids_T, example in zip(states_BTD, ids_BT, examples, strict=True):
            labelled = np.concatenate([np.arange(start, stop) for start, stop in example.labels])
            ending = labelled[np.isin(example.trunk[labelled], ends)]
            answer = loss(states_TD, ids_T, labelled)
            end = loss(states_TD, ids_T, ending)
            content = TokenLoss(answer.total - end.total, answer.tokens - end.tokens)
            losses.append({NLL: answer, CONTENT_NLL: content, END_NLL: end})
    return losses


def softmax_size(model: nn.Module, prompter: Prompter) -> int:
    """V of the LM softmax: the model's vocabulary without predictor tokens at its end."""
    # Training leaves these tokens out of the softmax. In the middle of the vocabulary they are ordinary entries.
    rows = vocabulary_size(causal_lm(model))
    kept = list(kept_predictors(prompter.tokenizer).values())
    return rows - len(kept) if kept == list(range(rows - len(kept), rows)) else rows


def summarise(losses: Sequence[TokenLoss], report: DataReport) -> Record:
    """Summarize a metric: mean per token, perplexity, and the mean over rows with its interval.

    Args:
        report: the report on the encoded rows.
    """
    tokens = sum(loss.tokens for loss in losses)
    # Tokens of a chat are not independent, so the interval belongs to the mean over rows.
    value = math.fsum(loss.total for loss in losses) / tokens if tokens else None
    means = [loss.mean for loss in losses if loss.mean is not None]
    rows = mean(means)
    return {
        "kind": "loss",
        "value": value,
        # exp overflows above 709.
        "perplexity": None if value is None else math.exp(min(value, 700.0)),
        "row_mean": rows.value,
        "low": rows.low,
        "high": rows.high,
        "n": len(means),
        "tokens": tokens,
        "answers_truncated": report.answers_truncated,
        "skipped": dict(report.rows_skipped),
    }
