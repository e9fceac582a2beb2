"""Self-speculative decoding: the heads of an objective draft tokens, and the model keeps those it would generate itself.

    ```
    known       the state h_t, and x_t+1, the likeliest token after it
    drafted     x_t+1    d_t+2    d_t+3    d_t+4         by the heads, from h_t and x_t+1
    one pass    h_t+1    h_t+2    h_t+3    h_t+4
    likeliest   x_t+2    x_t+3    x_t+4    x_t+5         kept up to the first that differs from the draft
    ```

Every kept token is the likeliest continuation of the tokens before it, as in greedy decoding: drafts change the number of
passes, not the text (blockwise parallel decoding, arXiv:1811.03115). A pass over several tokens may round differently from
passes over single tokens, which can swap two tokens whose probabilities are equal up to rounding. Answers are generated one
at a time, because each answer keeps a different number of drafts.

Shapes: T tokens of a pass, N kept ones among them, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput

from stepjepa.config.option import Names
from stepjepa.errors import ConfigError
from stepjepa.generation.options import GeneratorOptions
from stepjepa.generation.output import Drafts
from stepjepa.modeling.parts import backbone, distance, embedding_rows, tolerance
from stepjepa.objectives.base import ModelView, Objective

_NAME = Names(GeneratorOptions)
# Newer versions of transformers renamed `past_key_values`, as an argument and in outputs, and warn about the old name.
CACHE_NAME = "cache" if "cache" in GenerateDecoderOnlyOutput.__annotations__ else "past_key_values"


@dataclass(frozen=True)
class Drafter:
    """Generates answers with drafts.

    Attributes:
        model: a causal LM in evaluation mode, on its device.
        objective: the objective whose heads draft.
        view: the model with the modules of the objective.
        count: largest number of tokens in a draft.
    """

    model: PreTrainedModel
    objective: Objective
    view: ModelView
    count: int

    @torch.inference_mode()
    def write(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        stop_ids: Sequence[int],
        suppressed: Sequence[int] = (),
    ) -> tuple[list[int], Drafts]:
        """Continue a prompt greedily; for the arguments see `generate_batch`.

        Returns:
            The new tokens, including the one that ends them, and the counts of the drafts.
        """
        # Without a configuration the cache keeps all states, which a sliding window may need after tokens are removed.
        cache = DynamicCache()
        states_ND = self._states(torch.tensor(prompt), cache)[-1:]
        likeliest_N = self._likeliest(states_ND, suppressed)
        new_ids = likeliest_N.tolist()
        passes = accepted = 0
        while len(new_ids) < max_new_tokens and new_ids[-1] not in stop_ids:
            # A pass yields one more token than it is given drafts.
            room = max_new_tokens - len(new_ids) - 1
            drafted_T = self.objective.draft(
                states_ND[-1:], likeliest_N[-1:], min(self.count, room), self.view
            )
            states_ND, likeliest_N = self._verified(drafted_T, cache, suppressed)
            kept = up_to_stop(likeliest_N.tolist(), stop_ids)
            new_ids += kept
            passes += 1
            # The last of the likeliest tokens was not drafted; a stop token may end the answer before it.
            accepted += min(len(likeliest_N) - 1, len(kept))
        return new_ids, Drafts(passes, accepted)

    def _verified(
        self, drafted_T: Tensor, cache: DynamicCache, suppressed: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Run a draft through the model, and remove wrong tokens from the cache.

        Returns:
            The states (N, D) of the known token and of the right drafts after it, and the likeliest next token (N,) of each.
        """
        states_TD = self._states(drafted_T, cache)
        likeliest_T = self._likeliest(states_TD, suppressed)
        # A draft is right if it and all drafts before it are the model's likeliest tokens.
        right = int((likeliest_T[:-1] == drafted_T[1:]).cumprod(dim=0).sum())
        wrong = len(drafted_T) - 1 - right
        if wrong:
            cache.crop(-wrong)
        return states_TD[: right + 1], likeliest_T[: right + 1]

    @torch.inference_mode()
    def check(self) -> None:
        """Check in a trial run that tokens run on a cropped cache get the same states as in a single pass.

        Raises:
            ConfigError: the states differ, as with recurrent layers, whose state cannot be cropped.
        """
        # Eight tokens in the cache, of which the last four are removed and run again, against one pass over all eight.
        ids_T = torch.arange(8) % len(embedding_rows(self.model))
        cache = DynamicCache()
        try:
            self._states(ids_T[:4], cache)
            self._states(ids_T[:4], cache)
            cache.crop(-4)
            expected_TD = self._states(ids_T, DynamicCache())[4:]
            equal = distance(self._states(ids_T[4:], cache), expected_TD) <= tolerance(self.model)
        except Exception:
            # Which error is raised by a cache that cannot be cropped depends on the architecture.
            equal = False
        if not equal:
            what = f"the cache of {type(self.model).__name__} cannot be cropped"
            raise ConfigError(f"--{_NAME.draft_tokens}: {what}; leave it out")

    def _states(self, ids_T: Tensor, cache: DynamicCache) -> Tensor:
        """The last hidden states (T, D) of tokens (T,) that follow the tokens in the cache and are added to it."""
        ids_1T = ids_T[None].to(embedding_rows(self.model).device)
        output = backbone(self.model)(input_ids=ids_1T, use_cache=True, **{CACHE_NAME: cache})
        return output[0][0]  # type: ignore[no-any-return]

    def _likeliest(self, states_TD: Tensor, suppressed: Sequence[int]) -> Tensor:
        """The likeliest token (T,) after each state."""
        logits_TV = self.view.logits(states_TD).float()
        # Suppressed tokens may lie beyond the head's vocabulary.
        logits_TV[:, [token for token in suppressed if token < logits_TV.shape[1]]] = -torch.inf
        return logits_TV.argmax(dim=-1)


def up_to_stop(token_ids: list[int], stop_ids: Sequence[int]) -> list[int]:
    """The tokens up to the first that ends a continuation, which is kept."""
    ends = [place for place, token in enumerate(token_ids, 1) if token in stop_ids]
    return token_ids[: ends[0]] if ends else token_ids
