"""Self-speculative decoding: the heads of an objective draft tokens, and the model keeps those that it would have written.

    ```
    known       the state h_t, and x_t+1, the likeliest token after it
    drafted     x_t+1    d_t+2    d_t+3    d_t+4         by the heads, from h_t and x_t+1
    one pass    h_t+1    h_t+2    h_t+3    h_t+4
    likeliest   x_t+2    x_t+3    x_t+4    x_t+5         kept up to the first that is not the draft
    ```

Every token that is kept is the likeliest one after those before it, as in greedy decoding: the drafts decide how many passes
that takes, not what is written (blockwise parallel decoding, arXiv:1811.03115). A pass over several tokens may round in
another way than passes over one, so two tokens that are equally likely to rounding may change places. Answers are written
one at a time, as each keeps another number of drafts.

Shapes: T tokens of a pass, N of them that are kept, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache, PreTrainedModel

from stepjepa.config.option import Names
from stepjepa.errors import ConfigError
from stepjepa.generation.options import GeneratorOptions
from stepjepa.generation.output import Drafts
from stepjepa.modeling.parts import backbone, distance, embedding_rows, tolerance
from stepjepa.objectives.base import ModelView, Objective

_NAME = Names(GeneratorOptions)


@dataclass(frozen=True)
class Drafter:
    """Writes answers with drafts.

    Attributes:
        model: a causal LM in evaluation mode, on its device.
        objective: what drafts.
        view: the model with the modules of the objective.
        count: tokens of a draft, at most.
    """

    model: PreTrainedModel
    objective: Objective
    view: ModelView
    count: int

    @torch.inference_mode()
    def write(
        self, prompt: Sequence[int], max_new_tokens: int, stop_ids: Sequence[int], suppressed: Sequence[int] = ()
    ) -> tuple[list[int], Drafts]:
        """Continue a prompt as `generate_batch` does without a temperature; see there for the arguments.

        Returns:
            The new tokens, up to the one that ends them, and what came of the drafts.
        """
        cache = DynamicCache()  # without a configuration it keeps all that a sliding window may need after a cut
        states_ND = self._states(torch.tensor(prompt), cache)[-1:]
        likeliest_N = self._likeliest(states_ND, suppressed)
        written = likeliest_N.tolist()
        passes = accepted = 0
        while len(written) < max_new_tokens and written[-1] not in stop_ids:
            room = max_new_tokens - len(written) - 1  # a pass gives one more token than there are drafts
            drafted_T = self.objective.draft(states_ND[-1:], likeliest_N[-1:], min(self.count, room), self.view)
            states_ND, likeliest_N = self._verified(drafted_T, cache, suppressed)
            kept = _up_to_stop(likeliest_N.tolist(), stop_ids)
            written += kept
            passes += 1
            accepted += min(len(likeliest_N) - 1, len(kept))
        return written, Drafts(passes, accepted)

    def _verified(
        self, drafted_T: torch.Tensor, cache: DynamicCache, suppressed: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The states (N, D) of the known token and the right drafts after it, and the likeliest token (N,) after each. What
        is wrong leaves the cache."""
        states_TD = self._states(drafted_T, cache)
        likeliest_T = self._likeliest(states_TD, suppressed)
        right = int((likeliest_T[:-1] == drafted_T[1:]).cumprod(dim=0).sum())
        wrong = len(drafted_T) - 1 - right
        if wrong:
            cache.crop(-wrong)
        return states_TD[: right + 1], likeliest_T[: right + 1]

    @torch.inference_mode()
    def check(self) -> None:
        """Try the cache: tokens after a cut must get the states that they get in one pass.

        Raises:
            ConfigError: they do not, as with recurrent layers, whose state cannot be cut back.
        """
        ids_T = torch.arange(8) % len(embedding_rows(self.model))
        cache = DynamicCache()
        try:
            self._states(ids_T[:4], cache)
            self._states(ids_T[:4], cache)
            cache.crop(-4)
            expected_TD = self._states(ids_T, DynamicCache())[4:]
            equal = distance(self._states(ids_T[4:], cache), expected_TD) <= tolerance(self.model)
        except Exception:  # each architecture has its own
            equal = False
        if not equal:
            what = f"the cache of {type(self.model).__name__} cannot be cut back"
            raise ConfigError(f"--{_NAME.draft_tokens}: {what}; leave it out")

    def _states(self, ids_T: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """The last states (T, D) of tokens (T,) that follow those in the cache, to which they are added."""
        ids_1T = ids_T[None].to(embedding_rows(self.model).device)
        output = backbone(self.model)(input_ids=ids_1T, past_key_values=cache, use_cache=True)
        return output[0][0]  # type: ignore[no-any-return]

    def _likeliest(self, states_TD: torch.Tensor, suppressed: Sequence[int]) -> torch.Tensor:
        """The likeliest token (T,) after each state."""
        logits_TV = self.view.logits(states_TD).float()
        logits_TV[:, [token for token in suppressed if token < logits_TV.shape[1]]] = -torch.inf
        return logits_TV.argmax(dim=-1)


def _up_to_stop(token_ids: list[int], stop_ids: Sequence[int]) -> list[int]:
    ends = [place for place, token in enumerate(token_ids, 1) if token in stop_ids]
    return token_ids[: ends[0]] if ends else token_ids
