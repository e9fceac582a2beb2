"""From texts to tokens, from character spans to token spans, and the prompts that a model was trained on.

One rule holds everywhere: a token belongs to the span that contains its last character. So a source view never sees a
character of its target, even if a tokenizer merges the end of a step with its separator.

Shapes: T tokens.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from stepjepa.config.option import Names
from stepjepa.data.blocks import marked_text, opened_in
from stepjepa.data.columns import Chat
from stepjepa.data.options import DataOptions, PromptFrom, PromptOptions
from stepjepa.data.rendered import Opening, quoted
from stepjepa.data.template import ChatRenderer, with_template
from stepjepa.data.types import Span
from stepjepa.errors import ConfigError, RowError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Ids and last characters, as `encode_texts` returns them.
TokenisedText = tuple[np.ndarray, list[int]]

_NAME = Names(DataOptions, PromptOptions)
# The names that `modeling.extras.predictor_names` makes.
_PREDICTOR = re.compile(r"<\|predictor_(\d+_)?\d+\|>")
# Mistral's templates ask for an id of nine characters.
_CALL = {"id": "x" * 9, "type": "function", "function": {"name": "x", "arguments": {}}}
_SHORT_CALL: Chat = [
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
]
_IDS_ONLY = {
    "add_special_tokens": False,
    "return_attention_mask": False,
    "return_token_type_ids": False,
}


def check_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that the tokenizer gives character offsets; ConfigError for a slow tokenizer."""
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(
            f"the tokenizer of {getattr(tokenizer, 'name_or_path', '') or 'this model'} is slow and gives no character "
            "offsets; load it as a fast tokenizer (use_fast=True), or convert it with transformers.convert_slow_tokenizer"
        )


def encode_texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[TokenisedText]:
    """Encode texts, and locate the last character of each token by the offsets of a fast tokenizer.

    No special tokens are added: the chat template writes them, so there is never a second BOS.

    Returns:
        For each text: ids (T,) int32, and the index of the last character of each of the T tokens, never decreasing.
    """
    if not texts:
        return []
    encodings = tokenizer(list(texts), **_IDS_ONLY).encodings
    # Some special tokens (Phi-3's <|assistant|>) swallow the white space after them, which may belong to the answer.
    greedy = {index for index, token in tokenizer.added_tokens_decoder.items() if token.rstrip}
    tokenised = []
    for text, encoding in zip(texts, encodings, strict=True):
        ids = encoding.ids
        offsets = encoding.offsets
        if not greedy.isdisjoint(ids):
            offsets = [
                _without_swallowed(text, *place) if index in greedy else place
                for index, place in zip(ids, offsets, strict=True)
            ]
        last = last_characters(offsets, len(text)).tolist()
        tokenised.append((np.array(ids, dtype=np.int32), last))
    return tokenised


def _without_swallowed(text: str, start: int, end: int) -> tuple[int, int]:
    """The offsets of a special token without the white space after it."""
    # A special token may itself be white space; it keeps a character.
    length = len(text[start:end].rstrip())
    return start, start + max(length, 1)


def encode_cut(tokenizer: PreTrainedTokenizerBase, text: str, cuts: Sequence[int]) -> TokenisedText:
    """Encode a text as `encode_texts` does, but with a token boundary at each of the character positions `cuts`."""
    edges = [0, *cuts, len(text)]
    pieces = encode_texts(tokenizer, [text[start:end] for start, end in pairwise(edges)])
    ids = np.concatenate([ids for ids, _ in pieces])
    return ids, [
        place + start for (_, last), start in zip(pieces, edges[:-1], strict=True) for place in last
    ]


def encode_apart(
    tokenizer: PreTrainedTokenizerBase, text: str, tokens: TokenisedText, places: Iterable[int]
) -> TokenisedText:
    """Return the tokens of a text, encoded again with boundaries at those `places` (character positions) that a token
    straddles."""
    # A needless cut could change other tokens: some tokenizers add a space before every text.
    cuts = {place for place in places if _is_straddled(tokenizer, text, tokens, place)}
    return encode_cut(tokenizer, text, sorted(cuts)) if cuts else tokens


def _is_straddled(
    tokenizer: PreTrainedTokenizerBase, text: str, tokens: TokenisedText, place: int
) -> bool:
    """Whether a token begins before a character position and ends after it."""
    ids, last = tokens
    before = bisect_left(last, place)
    if place in (0, len(text)) or (before > 0 and last[before - 1] == place - 1):
        return False
    # Some tokenizers give no token to the white space before the position.
    alone, _ = encode_texts(tokenizer, [text[:place]])[0]
    return not np.array_equal(alone, ids[:before])


def last_characters(offsets: Sequence[tuple[int, int]], text_length: int) -> np.ndarray:
    """Return the index of the last character of each token, (T,) int64.

    A token with empty offsets has either lost its character (GPT-NeoX trims white space off its offsets, which leaves a gap
    before the token) or never had one (an added leading space). In the second case, the token gets the character that
    follows it.
    """
    # `fromiter` takes half of the time that `np.array` takes for the list.
    numbers = np.fromiter(chain.from_iterable(offsets), dtype=np.int64, count=2 * len(offsets))
    begins = numbers[::2]
    ends = numbers[1::2]
    last = ends - 1
    empty = ends <= begins
    if empty.any():
        end_before = np.concatenate([[0], ends[:-1]])
        no_gap = end_before >= begins
        character_after = np.minimum(begins, max(text_length - 1, 0))
        last = np.where(empty & no_gap, character_after, last)
    # Bisection needs ascending positions.
    return np.maximum.accumulate(last)


def token_span(last_character: Sequence[int], start: int, end: int) -> Span:
    """Return the tokens [first, stop) whose last character (see `encode_texts`) is in [start, end); first == stop if there
    is none."""
    first = bisect_left(last_character, start)
    return Span(first, bisect_left(last_character, end, first))


def template_turn_end(
    tokenizer: PreTrainedTokenizerBase, renderer: ChatRenderer | None
) -> int | None:
    """Return the special token that a chat template writes after the last answer of a chat; None if it writes none, if it
    refuses a chat of two messages, or if there is no template."""
    chat = None if renderer is None else renderer.sample
    tail = chat.text[chat.spans[-1].end :] if chat else ""
    return next(iter(_marks_in(tokenizer, tail)), None)


def template_call_end(
    tokenizer: PreTrainedTokenizerBase, renderer: ChatRenderer | None
) -> int | None:
    """Return the special token that a chat template writes after a last tool call; None if it writes none, if it refuses
    calls, or if there is no template."""
    text = renderer.written(_SHORT_CALL) if renderer else ""
    ids = tokenizer(text.rstrip(), add_special_tokens=False)["input_ids"]
    marks = turn_marks(tokenizer)
    return next((index for index in ids[-1:] if index in marks), None)


def answer_end(tokenizer: PreTrainedTokenizerBase, renderer: ChatRenderer | None) -> int | None:
    """Return the token that ends an answer in training: the template's end of turn, else the appended EOS; None if there is
    neither."""
    end = template_turn_end(tokenizer, renderer)
    return tokenizer.eos_token_id if end is None else end


def template_marks(tokenizer: PreTrainedTokenizerBase, renderer: ChatRenderer | None) -> list[int]:
    """Return the special tokens that the chat template writes into a chat of two messages, each once; empty if there is
    no template, or if it refuses the chat."""
    chat = None if renderer is None else renderer.sample
    return _marks_in(tokenizer, chat.text) if chat else []


def _marks_in(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The special tokens in a text, each once, in order."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    marks = turn_marks(tokenizer)
    return [index for index in dict.fromkeys(ids) if index in marks]


def usable_renderer(
    tokenizer: PreTrainedTokenizerBase, template_kwargs: Mapping[str, Any] | None = None
) -> ChatRenderer | None:
    """Return the renderer of a tokenizer's chat template; None if there is no usable template."""
    try:
        return ChatRenderer(tokenizer, template_kwargs)
    except ConfigError:
        return None


def stop_ids(
    of_model: int | Sequence[int] | None,
    tokenizer: PreTrainedTokenizerBase,
    renderer: ChatRenderer | None,
) -> list[int]:
    """Return the tokens that end a response: the model's, the tokenizer's EOS, and the ends of an answer and of a tool call
    in the chat template."""
    named = [of_model] if isinstance(of_model, int) else list(of_model or ())
    ends = (answer_end(tokenizer, renderer), template_call_end(tokenizer, renderer))
    return sorted({*named, tokenizer.eos_token_id, *ends} - {None})


def turn_marks(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the tokens that may end a turn: the first of them after the content of a message ends it.

    Chat markers such as ``<|eot_id|>`` are added tokens, special or not, but often not among the named special tokens (bos,
    eos, ...). Added tokens of only white space (Gemma's line breaks) do not end a turn.
    """
    added = {
        i
        for i, token in tokenizer.added_tokens_decoder.items()
        if token.content.strip("\u2581 \t\r\n")
    }
    return frozenset(added | set(tokenizer.all_special_ids))


def kept_predictors(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return the predictor tokens in a tokenizer's vocabulary with their ids, in ascending order."""
    known = sorted(tokenizer.get_added_vocab().items(), key=lambda item: item[1])
    return {name: index for name, index in known if _PREDICTOR.fullmatch(name)}


class Prompter:
    """Turns chats into prompts of token ids. With a `chat_template`, it uses a copy of the tokenizer.

    Args:
        prompt_from: the option of this name, see `data.options.PromptOptions`.
        trained: the end of the generation prompt that the model's training data did not have; None if this is unknown.

    Attributes:
        note: a warning if the prompt may differ from those in training; else empty.

    Raises:
        ConfigError: the tokenizer has no chat template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        chat_template: str | None = None,
        plain: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        prompt_from: PromptFrom = None,
        trained: str | None = None,
    ):
        tokenizer = with_template(tokenizer, chat_template, plain)
        self.tokenizer, self.renderer = tokenizer, ChatRenderer(tokenizer, template_kwargs)
        self.note, self.dropped = "", ""
        sample = self.renderer.sample
        usual = (sample and sample.openings[0]) or Opening()
        # The training data decide, if they are known; else a chat of two messages shows how chats differ from the prompt.
        if prompt_from != "template" and trained is not None:
            self.dropped = trained
        elif prompt_from == "training":
            self.dropped = usual.extra
        elif prompt_from is None and usual.extra.strip():
            self.note = (
                f"the prompt ends in {quoted(usual.extra)}, which the template does not write before an answer in a chat; "
                f"--{_NAME.prompt_from} training leaves it out"
            )
        self._header = usual.written

    def text(
        self,
        messages: Chat,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt for the next answer in a chat, with the template arguments of its row.

        Raises:
            ConfigError: the template refuses the chat.
        """
        try:
            return (
                self.renderer.using(template_kwargs or {})
                .prompt(messages)
                .removesuffix(self.dropped)
            )
        except RowError as error:
            raise ConfigError(f"{error}; see --{_NAME.system_prompt} none") from None

    def ids(
        self,
        messages: Chat,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the token ids of `text`."""
        text = self.text(messages, template_kwargs)
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def response(self, ids: Sequence[int], text: str, prompt: Sequence[int] = ()) -> str:
        """Return the answer in the output of a model: without the template's text between the generation prompt and an
        answer, but with the marks of thinking, including one at the end of the prompt.

        Args:
            ids: the output.
            text: the output decoded without special tokens.
            prompt: the ids of the prompt.
        """
        header = self._header.strip()
        place = self._decoded(ids).rfind(header) if header else -1
        if place < 0:
            answer = marked_text(self.tokenizer, ids) or text
            return opened_in(self.tokenizer, prompt) + answer

        # The answer begins at the first token after the header. A token may be only a part of a character, so bisect by the
        # length of the decoded text.
        def decoded_length(count: int) -> int:
            return len(self._decoded(ids[:count]))

        begin = bisect_left(range(len(ids) + 1), place + len(header), key=decoded_length)
        answer = self._decoded(ids[begin:], skip_special_tokens=True)
        white_space = self._header[len(self._header.rstrip()) :]
        return answer.removeprefix(white_space)

    def _decoded(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        skips = {"skip_special_tokens": skip_special_tokens, "clean_up_tokenization_spaces": False}
        return str(self.tokenizer.decode(list(ids), **skips))

    def stop_ids(self, of_model: int | Sequence[int] | None) -> list[int]:
        """See the function `stop_ids`; `of_model`: the tokens that the model's generation config names."""
        return stop_ids(of_model, self.tokenizer, self.renderer)

    def unwritable_ids(self, rows: int) -> list[int]:
        """Return the tokens that never stand for text, for a model with `rows` embeddings: those after
        the tokenizer's last token (padding of the vocabulary, predictor tokens during training) and kept predictor
        tokens."""
        kept = [index for index in kept_predictors(self.tokenizer).values() if index < rows]
        return sorted(
            {*kept, *range(max(self.tokenizer.get_vocab().values(), default=-1) + 1, rows)}
        )


def label_spans(
    mode: str,
    ids: np.ndarray,
    answers: Sequence[Span],
    ends: Iterable[int],
    limit: int,
    context: Sequence[Span] = (),
) -> tuple[Span, ...]:
    """Choose the tokens of the LM loss.

    - ``assistant``: every answer and the end-of-turn token after it.
    - ``all``: every token except the first, which nothing predicts.
    - ``reference``: every token of system, user and assistant, but no end of turn and no padding. The published LLM-JEPA
      code trains on these: its collator replaces the answer-only labels with the input ids and leaves out the padding token,
      which is also the end of turn. For comparison only: such a model does not learn to stop.

    Args:
        ids: (T,) the trunk, of which `limit` tokens are kept.
        answers: each with the end of its turn.
        ends: ids of end-of-turn and padding tokens (``reference``).
        context: messages that are not trained on; no mode labels them.
    """
    length = min(len(ids), limit)
    if mode == "assistant":
        return cut_spans(answers, length)
    labelled = np.ones(length, bool)
    if mode == "reference":
        labelled = ~np.isin(ids[:length], np.fromiter(ends, np.int64))
    for span in context:
        labelled[span.start : span.stop] = False
    return spans_of(labelled)


def spans_of(labelled: np.ndarray) -> tuple[Span, ...]:
    """Return the spans of a mask of labelled tokens, (T,) bool, without the first token, which nothing predicts."""
    labelled[:1] = False
    # Every change of the mask is an edge: starts and stops alternate.
    edges = np.flatnonzero(np.diff(labelled, prepend=False, append=False)).reshape(-1, 2).tolist()
    return tuple(Span(start, stop) for start, stop in edges)


def cut_spans(spans: Sequence[Span], limit: int) -> tuple[Span, ...]:
    """Return the labelled parts of spans among the first `limit` tokens."""
    # Nothing predicts token 0.
    cut = [Span(max(start, 1), min(stop, limit)) for start, stop in spans]
    return tuple([span for span in cut if span.start < span.stop])
