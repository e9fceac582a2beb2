"""The state of a token and the next token predict the state of the next token (NextLat, arXiv:2511.05963).

A small dynamics network f is rolled out over the chat's own states h, without extra tokens; e is the input embedding:

    ```
    tokens      ..  x_t          x_t+1        x_t+2        x_t+3          labelled: x_t+1, x_t+2, x_t+3
    states      ..  h_t          h_t+1        h_t+2        h_t+3
    rollout         h_t    ->    h^_t+1   ->  h^_t+2   ->  h^_t+3         h^_k+1 = h^_k + f([e(x_k+1); h^_k])
    ```

A rollout begins at every t whose next token is labelled, and takes `latent_horizon` steps, or fewer if the labelled run ends
earlier. The loss of a step is the distance of h^ to h, which has no gradient, and the divergence KL(p(h) || p(h^)) of the
output head's token distributions; p(h) and the head's weights have no gradient here. Both are summed over the steps of a
rollout and averaged over the rollouts:

    gamma * LM + lambda * sum over k = t+1 .. t+latent_horizon of
        (latent_distance * distance(h^_k, stop(h_k)) + latent_kl * KL(p(h_k) || p(h^_k)))

Either weight may be 0: without the KL only states are predicted, without the distance only tokens. The default distance is
`smooth_l1`; it is logged even at weight 0.

f is LayerNorm, Linear(2 D, D), GELU, Linear(D, D), GELU, Linear(D, D); its last layer starts at zero, so that at first it
predicts that nothing changes. f is used in training, and can draft tokens (``--draft_tokens``), each from the state that it
predicts after the previous token. The exported model does not have it.

Shapes: P rollouts, one per pair; D width, V vocabulary, C rows of a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stepjepa.config.option import Names, Topic, option
from stepjepa.data.types import Batch, ForestOutput, LossPart, LossParts, PairsFound
from stepjepa.errors import ConfigError
from stepjepa.objectives.base import JEPA, LookAhead, ModelView
from stepjepa.objectives.options import AHEAD, Defaults

if TYPE_CHECKING:
    from torch import Tensor, nn

    from stepjepa.data.encode import TokenChat


@dataclass
class NextLatentOptions(Topic):
    """Options of objective `next_latent`."""

    latent_horizon: int = option(
        1, "Steps of a rollout, each from the previously predicted state.", AHEAD, at_least=1
    )
    latent_distance: float = option(
        1.0,
        "Weight of the distance between states. 0 trains only on the token divergence.",
        AHEAD,
        at_least=0,
    )
    latent_kl: float = option(
        1.0,
        "Weight of the divergence between token distributions. 0 trains only on the state distance.",
        AHEAD,
        at_least=0,
    )
    latent_positions: Literal["labelled", "all"] = option(
        "labelled", "Whether rollouts begin before labelled tokens or before every token.", AHEAD
    )


_NAME = Names(NextLatentOptions)
# Name of the KL part of the loss in the log.
KL = _NAME.latent_kl


class NextLatent(LookAhead):
    """``--objective next_latent``; see the top of this file."""

    name = "next_latent"
    defaults = Defaults(target_grad=False, jepa_loss="smooth_l1")
    Options = NextLatentOptions
    vector_names = "state", "next state"
    drafts = True

    def check(self) -> None:
        """As `Objective.check`; raises ConfigError."""
        super().check()
        if not self.options.latent_distance and not self.options.latent_kl:
            raise ConfigError(
                f"{_NAME.latent_distance} and {_NAME.latent_kl} are both 0, which leaves {self.name} without a loss; give "
                "one of them a weight, or use objective regular"
            )

    def pairs_of(self, chat: TokenChat) -> PairsFound:
        """See `LookAhead`; with ``latent_positions=all``, as for a text."""
        return (
            super().pairs_of(chat)
            if self.options.latent_positions == "labelled"
            else self.pairs_of_text(chat.trunk)
        )

    @property
    def part_names(self) -> tuple[str, ...]:
        return (*super().part_names, *((KL,) if self.options.latent_kl else ()))

    def modules(self, width: int, vocabulary: int) -> nn.Module:
        """The dynamics network."""
        from torch import nn

        network = nn.Sequential(
            nn.LayerNorm(2 * width),
            nn.Linear(2 * width, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, width),
        )
        # f is a residual: with a last layer of zeros, the first prediction is the state itself.
        for parameter in network[-1].parameters():
            nn.init.zeros_(parameter)
        return network

    def flops(self, pairs: int, width: int, vocabulary: int) -> float:
        """See `Objective`."""
        from stepjepa.losses.lm import chunk_rows

        # The head: the logits of both states and one gradient, and in chunks both logits again in the backward pass.
        products = 3 if pairs <= chunk_rows(vocabulary) else 5
        head = products * 2 * width * vocabulary if self.options.latent_kl else 0
        # The network: 4 D^2 weights, two FLOPs each, once forward and twice backward.
        return float(pairs * self.options.latent_horizon * (3 * 8 * width**2 + head))

    def source_states(self, output: ForestOutput, batch: Batch, view: ModelView) -> Tensor:
        """The states (P, D) after the first step of every rollout."""
        return _step(output.source_states, _next_ids(batch), view)

    def draft(self, state_1D: Tensor, token_1: Tensor, count: int, view: ModelView) -> Tensor:
        """See `Objective`; a rollout from the state (1, D) over the tokens that it drafts."""
        import torch

        tokens = [token_1]
        for _ in range(count):
            state_1D = _step(state_1D, tokens[-1], view)
            tokens.append(view.logits(state_1D).argmax(dim=-1))
        return torch.cat(tokens)

    def loss(self, output: ForestOutput, batch: Batch, view: ModelView, step: int) -> LossParts:
        """See `Objective`; the part `KL` is the divergence of the tokens."""
        import torch

        # The first step of every rollout is an ordinary pair, whose source state `source_states` has computed.
        parts = dict(super().loss(output, batch, view, step))
        predicted_PD = output.source_states
        ids_P = _next_ids(batch)
        position_P = batch.sources.positions
        # Whether the next pair has the next token of the same run; a rollout ends where this is false.
        follows_P = torch.zeros_like(position_P, dtype=torch.bool)
        follows_P[:-1] = position_P[1:] == position_P[:-1] + 1
        inside_P = torch.ones_like(follows_P)
        distance = parts[JEPA].sum
        divergence = predicted_PD.new_zeros((), dtype=torch.float32)
        # The later steps of pair i use the tokens and the targets of the pairs i + 1, i + 2, ... All rollouts advance
        # together; those that have ended are still computed, but masked.
        for ahead in range(self.options.latent_horizon):
            target_PD = output.target_states.roll(-ahead, 0)
            if ahead:
                inside_P = inside_P & follows_P.roll(1 - ahead)
                predicted_PD = _step(predicted_PD, ids_P.roll(-ahead), view)
                distances_P = self.distances(predicted_PD, target_PD)
                distance = distance + (distances_P * inside_P).sum()
            if self.options.latent_kl:
                divergence = divergence + _divergence(predicted_PD, target_PD, inside_P, view)
        parts[JEPA] = parts[JEPA]._replace(sum=distance, weight=self.options.latent_distance)
        if self.options.latent_kl:
            parts[KL] = LossPart(divergence, batch.weight, self.options.latent_kl)
        return parts


def _next_ids(batch: Batch) -> Tensor:
    """The token (P,) after each source."""
    return batch.rows.input_ids.flatten()[batch.sources.positions + 1]


def _step(states_PD: Tensor, ids_P: Tensor, view: ModelView) -> Tensor:
    """The states (P, D) that the dynamics network predicts from these states and the next tokens, in the states' dtype."""
    import torch

    assert view.modules is not None
    states = states_PD.float()
    return (states + view.modules(torch.cat([view.embed(ids_P).float(), states], dim=-1))).to(
        states_PD.dtype
    )


def _divergence(
    predicted_PD: Tensor, target_PD: Tensor, inside_P: Tensor, view: ModelView
) -> Tensor:
    """Sum of KL(p(target) || p(predicted)) over the pairs in `inside_P`, () float32, with gradient into the prediction."""
    import torch.nn.functional as F

    from stepjepa.losses.lm import chunk_rows, chunked_sum

    def chunk_loss(predicted_CD: Tensor, target_CD: Tensor, inside_C: Tensor) -> Tensor:
        # The divergence trains the network and the states, not the output head.
        predicted_CV = view.logits(predicted_CD, detach=True).float().log_softmax(dim=-1)
        target_CV = view.logits(target_CD, detach=True).float().log_softmax(dim=-1)
        divergence_CV = F.kl_div(predicted_CV, target_CV, reduction="none", log_target=True)
        return (divergence_CV.sum(dim=-1) * inside_C).sum()

    target_PD = target_PD.detach().to(predicted_PD.dtype)
    return chunked_sum(chunk_loss, chunk_rows(view.vocabulary), predicted_PD, target_PD, inside_P)
