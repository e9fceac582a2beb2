"""A plain record of one packed row: what every token is, what is read where, and who sees whom.

The record holds no rule of its own: the layout is `forest.layout.build_forest`'s, the visibility that of
`forest.visibility.visible` on numpy arrays.

Shapes: L tokens of the row, K predictors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stepjepa.data.chat import ChatRenderer
from stepjepa.data.examples import Example
from stepjepa.data.steps import StepSplitter
from stepjepa.data.tokens import encode_texts, token_span
from stepjepa.forest.layout import Forest, build_forest
from stepjepa.forest.visibility import visible

# What a token is, in the order of the legend.
KINDS = {
    "prompt": "trunk, no label",
    "answer": "trunk, labelled",
    "source_end": "end of a source view (a branch hangs behind it)",
    "original": "a target view's original on the trunk",
    "predictor": "predictor token",
    "target": "isolated copy of a target view",
}


class TrunkSpan(NamedTuple):
    """A named stretch [start, stop) of one example's trunk tokens."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Readout:
    """A token of the row: its index and its text."""

    index: int
    text: str


@dataclass(frozen=True)
class PairRecord:
    """One pair; all indices count along the row.

    Attributes:
        example: which example of the row.
        number: from 1, within the example.
        source_end: last token of the source view, behind which the branch hangs.
        source: the token whose state stands for the source view.
        target: the token whose state stands for the target view, in the isolated copy.
        original: [start, stop) of the target view on the trunk.
        copy: [start, stop) of its isolated copy.
    """

    example: int
    number: int
    source_end: Readout
    source: Readout
    target: Readout
    original: tuple[int, int]
    copy: tuple[int, int]


@dataclass(frozen=True)
class RowRecord:
    """One row of one or several examples, without padding.

    Attributes:
        texts: L token texts.
        ids, positions, examples, segments, orders, attaches: (L,) int64, as `ForestCollator` would hand them to the
            model (`examples` counts from 0).
        names: L segment names: "trunk: user", "trunk: step 1", "branch 1", "target 1".
        kinds: L of the keys of `KINDS`.
        labelled: (L,) bool, whether the LM loss is computed on this token (it is predicted from the one before).
        pairs: in the order of the losses.
        visible: (L, L) bool, True where the token of the row sees the token of the column.
    """

    texts: tuple[str, ...]
    ids: np.ndarray
    positions: np.ndarray
    examples: np.ndarray
    segments: np.ndarray
    orders: np.ndarray
    attaches: np.ndarray
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    labelled: np.ndarray
    pairs: tuple[PairRecord, ...]
    visible: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    def sections(self) -> list[tuple[int, int]]:
        """[start, stop) of every run of tokens that share example, segment and name."""
        keys = list(zip(self.examples.tolist(), self.segments.tolist(), self.names, strict=True))
        edges = [0, *(i for i in range(1, len(keys)) if keys[i] != keys[i - 1]), len(keys)]
        return list(zip(edges[:-1], edges[1:], strict=True))


def row_record(
    examples: Sequence[Example],
    predictors: int,
    token_text: Callable[[int], str],
    *,
    vocabulary: int,
    predictor_order: str = "ascending",
    spans: Sequence[Sequence[TrunkSpan]] | None = None,
) -> RowRecord:
    """The record of a row that holds `examples`.

    Args:
        examples: at least one, for instance from an `ExampleStore`.
        predictors: K.
        token_text: text of a token id below `vocabulary`.
        vocabulary: entries of the vocabulary; the predictors' ids are taken to lie right behind it.
        predictor_order: ``ascending`` or ``descending``.
        spans: names for each example's trunk (`trunk_spans`); without them labelled tokens are called "answer", the
            others "prompt".
    """
    ids = list(range(vocabulary, vocabulary + predictors))
    shown = {index: f"<|predictor_{number}|>" for number, index in enumerate(ids, 1)}
    if predictor_order == "descending":
        ids.reverse()
    forests = [build_forest(example, ids) for example in examples]
    starts = np.cumsum([0, *(len(forest) for forest in forests)]).tolist()
    row: dict[str, np.ndarray] = {
        name: np.concatenate([getattr(forest, name) for forest in forests]).astype(np.int64)
        for name in ("input_ids", "position_ids", "segment", "order", "attach")
    }
    number = np.repeat(np.arange(len(forests)), [len(forest) for forest in forests])
    texts = tuple(shown.get(index) or token_text(index) for index in row["input_ids"].tolist())
    labelled = np.zeros(len(texts), bool)
    names: list[str] = []
    kinds: list[str] = []
    pairs: list[PairRecord] = []
    for index, (example, forest, start) in enumerate(zip(examples, forests, starts, strict=False)):
        labels = np.zeros(len(forest), bool)
        labels[forest.label_positions + 1] = True
        labelled[start : start + len(forest)] = labels
        trunk = _trunk_names(labels[: forest.trunk_length], spans[index] if spans else ())
        names += [*trunk, *_other_names(example, predictors)]
        kinds += _kinds(example, labels, predictors)
        pairs += _pairs(index, example, forest, start, texts)
    segment, order, attach = row["segment"], row["order"], row["attach"]
    seen = visible(
        number[:, None],
        number[None, :],
        segment[:, None],
        segment[None, :],
        order[:, None],
        order[None, :],
        attach[:, None],
    )
    return RowRecord(
        texts=texts,
        ids=row["input_ids"],
        positions=row["position_ids"],
        examples=number,
        segments=segment,
        orders=order,
        attaches=attach,
        names=tuple(names),
        kinds=tuple(kinds),
        labelled=labelled,
        pairs=tuple(pairs),
        visible=seen,
    )


def trunk_spans(
    tokenizer: Any,
    renderer: ChatRenderer,
    messages: Sequence[Mapping[str, str]],
    splitter: StepSplitter | None = None,
) -> tuple[TrunkSpan, ...]:
    """Where a chat's messages, and with a splitter the answers' steps, stand among its tokens.

    Names are the roles, and "step 1" .. for an answer's steps ("answer 2, step 1" where there are several answers).
    Empty stretches are left out. What stands between, the template's own tokens, has no span.

    Raises:
        RowError: the template refuses the chat.
    """
    chat = renderer.render(messages)
    last = encode_texts(tokenizer, [chat.text])[0][1]
    several = sum(span.role == "assistant" for span in chat.spans) > 1
    answers = 0
    found: list[TrunkSpan] = []
    for span in chat.spans:
        name, pieces = span.role, [(0, span.end - span.start)]
        if span.role == "assistant":
            answers += 1
            name = f"answer {answers}" if several else "answer"
            if splitter is not None:
                pieces = splitter.spans(chat.text[span.start : span.end])
                name = f"{name}, step" if several else "step"
        for number, (start, end) in enumerate(pieces, 1):
            first, stop = token_span(last, span.start + start, span.start + end)
            if first < stop:
                found.append(TrunkSpan(f"{name} {number}" if name.endswith("step") else name, first, stop))
    return tuple(found)


def token_text(tokenizer: Any) -> Callable[[int], str]:
    r"""A function from a token id to its text; bytes that are no whole character are written ``\xf0``."""
    letters = _byte_letters()

    def text(index: int) -> str:
        piece = tokenizer.convert_ids_to_tokens(index)
        if piece is None:
            return f"<id {index}>"
        decoded = tokenizer.decode([index], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if "\ufffd" in decoded and all(letter in letters for letter in piece):
            return "".join(f"\\x{letters[c]:02x}" if letters[c] > 126 else chr(letters[c]) for c in piece)
        if piece.startswith("\u2581") and not decoded.startswith(" "):
            return " " + decoded  # SentencePiece's decoder drops the first space of a text
        return piece if decoded == "" or "\ufffd" in decoded else decoded

    return text


def _trunk_names(labels: np.ndarray, spans: Sequence[TrunkSpan]) -> list[str]:
    if not spans:
        return ["trunk: answer" if label else "trunk: prompt" for label in labels]
    names = ["trunk: end of turn" if label else "trunk: template" for label in labels]
    for name, start, stop in spans:
        stop = min(stop, len(names))
        names[start:stop] = [f"trunk: {name}"] * (stop - start)
    return names


def _other_names(example: Example, predictors: int) -> list[str]:
    names = []
    for number, pair in enumerate(example.pairs, 1):
        names += [f"branch {number}"] * predictors
        names += [f"target {number}"] * (pair.target_end - pair.target_start)
    return names


def _kinds(example: Example, labels: np.ndarray, predictors: int) -> list[str]:
    length = len(example.input_ids)
    trunk = ["answer" if label else "prompt" for label in labels[:length]]
    others = []
    for pair in example.pairs:
        trunk[pair.target_start : pair.target_end] = ["original"] * (pair.target_end - pair.target_start)
        others += ["predictor"] * predictors + ["target"] * (pair.target_end - pair.target_start)
    for pair in example.pairs:
        trunk[pair.source_end] = "source_end"
    return trunk + others


def _pairs(number: int, example: Example, forest: Forest, start: int, texts: Sequence[str]) -> list[PairRecord]:
    def readout(index: int) -> Readout:
        return Readout(start + index, texts[start + index])

    records = []
    readouts = zip(forest.source_readouts.tolist(), forest.target_readouts.tolist(), strict=True)
    for count, (pair, (source, target)) in enumerate(zip(example.pairs, readouts, strict=True), 1):
        copy = target - (pair.target_readout - pair.target_start) + start
        records.append(
            PairRecord(
                example=number,
                number=count,
                source_end=readout(pair.source_end),
                source=readout(source),
                target=readout(target),
                original=(start + pair.target_start, start + pair.target_end),
                copy=(copy, copy + pair.target_end - pair.target_start),
            )
        )
    return records


def _byte_letters() -> dict[str, int]:
    """The letters that byte-level tokenizers (GPT-2's convention) write for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(rest)}
