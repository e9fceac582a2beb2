"""The published form of LLM-JEPA training, written anew from its description: doubled rows, padded to 512 tokens.

Every example becomes two rows of 512 positions. The first is the chat. The second holds both views one after the
other, each seeing itself only (`llm_jepa`: the user message with K predictor tokens at the end of its content, then
the answer message, each rendered alone by the chat template; `step_jepa`: the chat with K predictor tokens behind
step 1 and step 2 isolated, what follows seeing everything). A batch of B examples is one call of the model on 2B rows
with an additive float mask of 512 x 512 a row, with labels and with `output_hidden_states=True`: logits for every
position of every row, the LM loss averaged over both halves, all hidden states kept, the views read from the last one.

That cost structure is kept as it is. Put right is only what crashes: ids, labels and masks have the same length, and
padding positions see themselves, so no row of the softmax is empty. Masks are built in `compute_loss`, at every step,
as there; tokenisation is done before, which favours this arm. The step form is described as two calls on B rows each,
which costs what one call on 2B rows costs.

Shapes: B examples, S = 512 positions of a row, D width, P examples with a pair.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from tokenizers import AddedToken
from transformers import Trainer
from workload import OBJECTIVES, Messages, Workload

from stepjepa.data.steps import make_splitter
from stepjepa.objectives.step_jepa import StepJEPA

ROW = 512
IGNORED = -100


class DoubledExample(NamedTuple):
    """Token ids of both rows and what the second row's mask and readouts need.

    Attributes:
        chat: ids of the chat.
        views: ids of the second row.
        target: [start, stop) of the target view in the second row; None where the example has no pair.
        readouts: positions in the second row that stand for source and target.
    """

    chat: list[int]
    views: list[int]
    target: tuple[int, int] | None
    readouts: tuple[int, int]


def predictor_tokenizer(tokenizer: Any, count: int) -> tuple[Any, str]:
    """A copy of the tokenizer that knows the predictor tokens, and their text."""
    tokenizer = copy.deepcopy(tokenizer)
    names = [f"<|predictor_{number}|>" for number in range(1, count + 1)]
    tokenizer.add_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return tokenizer, "".join(names)


def make_examples(workload: Workload, tokenizer: Any, predictors: str) -> list[DoubledExample]:
    """Tokenise all rows of a workload."""
    make = _step_example if OBJECTIVES[workload.name]["objective"] == StepJEPA.name else _view_example
    return [make(tokenizer, chat, predictors) for chat in workload.chats]


def _ids(tokenizer: Any, chat: Messages) -> list[int]:
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    return tokenizer(text, add_special_tokens=False, truncation=True, max_length=ROW)["input_ids"]


def _view_example(tokenizer: Any, chat: Messages, predictors: str) -> DoubledExample:
    """User message and answer; the readout by offset -2 is the token before the end-of-turn token of each view."""
    user, answer = chat[-2], chat[-1]
    source = _ids(tokenizer, [{**user, "content": user["content"] + predictors}])
    target = _ids(tokenizer, [answer])
    start, stop = len(source), len(source) + len(target)
    if stop > ROW:
        return DoubledExample(_ids(tokenizer, chat), _ids(tokenizer, chat), None, (0, 0))
    return DoubledExample(_ids(tokenizer, chat), source + target, (start, stop), (start - 2, stop - 2))


def _step_example(tokenizer: Any, chat: Messages, predictors: str) -> DoubledExample:
    """Step 1 and step 2; the readouts are the last predictor and the last token of step 2."""
    ids, answer = _ids(tokenizer, chat), chat[-1]["content"]
    steps = make_splitter("lines", "\n\n").spans(answer)
    if len(steps) < 2:
        return DoubledExample(ids, ids, None, (0, 0))
    (_, cut), (_, end) = steps[:2]
    content = answer[:cut] + predictors + answer[cut:]
    text = tokenizer.apply_chat_template([*chat[:-1], {**chat[-1], "content": content}], tokenize=False)
    encoded = tokenizer(text, add_special_tokens=False, truncation=True, max_length=ROW, return_offsets_mapping=True)
    begin = text.index(predictors) + len(predictors)
    inside = [i for i, (_, last) in enumerate(encoded["offset_mapping"]) if begin < last <= begin + end - cut]
    if not inside or len(encoded["input_ids"]) == ROW:
        return DoubledExample(ids, ids, None, (0, 0))
    start, stop = inside[0], inside[-1] + 1
    return DoubledExample(ids, encoded["input_ids"], (start, stop), (start - 1, stop - 1))


class DoubledCollator:
    """Pads both rows of every example to 512; labels are the ids without padding, as the stock collator has them."""

    def __init__(self, pad_id: int):
        self.pad_id = pad_id

    def __call__(self, examples: list[DoubledExample]) -> dict[str, torch.Tensor]:
        """Ids and labels (B, S) of both halves; lengths, target spans (0, 0 for none) and readouts, (B, 2) each."""
        chat, views = (torch.full((len(examples), ROW), self.pad_id) for _ in range(2))
        labels, view_labels = torch.full_like(chat, IGNORED), torch.full_like(chat, IGNORED)
        for row, example in enumerate(examples):
            for ids, label, tokens in ((chat, labels, example.chat), (views, view_labels, example.views)):
                ids[row, : len(tokens)] = torch.tensor(tokens)
                label[row, : len(tokens)] = torch.tensor(tokens)
        return {
            "input_ids": chat,
            "labels": labels,
            "view_input_ids": views,
            "view_labels": view_labels,
            "lengths": torch.tensor([(len(example.chat), len(example.views)) for example in examples]),
            "targets": torch.tensor([example.target or (0, 0) for example in examples]),
            "readouts": torch.tensor([example.readouts for example in examples]),
        }


def additive_mask(length: int, start: int = 0, stop: int = 0, **kind: Any) -> torch.Tensor:
    """(S, S), 0 = visible: causal over `length` tokens, [start, stop) isolated, padding seeing itself.

    Args:
        kind: its `dtype` (float32) and `device` (CPU).
    """
    mask = torch.full((ROW, ROW), -torch.inf, **kind)
    mask[:length, :length] = torch.full((length, length), -torch.inf, **kind).triu(diagonal=1)
    mask[start:stop, :start] = -torch.inf
    mask.diagonal().zero_()
    return mask


class DoubledTrainer(Trainer):
    """``LM + lbd * cosine`` from one call on 2B padded rows."""

    lbd = 0.1

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """See the module."""
        chats, views = inputs["lengths"].unbind(dim=1)  # (B,) each
        kind = {"device": chats.device, "dtype": torch.bfloat16 if self.args.bf16 else torch.float32}
        masks = [additive_mask(length, **kind) for length in chats.tolist()]
        masks += [
            additive_mask(length, *span, **kind)
            for length, span in zip(views.tolist(), inputs["targets"].tolist(), strict=True)
        ]
        outputs = model(
            input_ids=torch.cat([inputs["input_ids"], inputs["view_input_ids"]]),  # (2B, S)
            labels=torch.cat([inputs["labels"], inputs["view_labels"]]),
            attention_mask=torch.stack(masks).unsqueeze(1),  # (2B, 1, S, S)
            output_hidden_states=True,
        )
        loss = outputs.loss
        paired = torch.nonzero(inputs["targets"][:, 1]).flatten()  # (P,)
        if len(paired):
            states = outputs.hidden_states[-1][len(chats) :]  # (B, S, D)
            source, target = (states[paired, readout] for readout in inputs["readouts"][paired].unbind(dim=1))
            loss = loss + self.lbd * (1 - F.cosine_similarity(source, target, dim=-1)).mean()
        return (loss, outputs) if return_outputs else loss
