"""The options that several objectives read, one small dataclass per topic.

An objective names the topics that it reads (`Objective.reads`); options of only one objective are in that objective's
file. Importing this module does not load torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stepjepa.config.option import Names, Topic, option
from stepjepa.data.options import VIEWS
from stepjepa.errors import ConfigError

# Headings of the options in the help and the reference.
METHOD, LOSS, OUTPUT, AHEAD = "method", "loss", "output", "looking ahead"
# Names of the distances in `losses.distances`, whose import would load torch.
LOSSES = ("cosine", "l2", "mse", "smooth_l1", "infonce")
# Built-in values of `target_encoder`; any other value is a model's folder or Hub id.
SELF, EMA, FROZEN = TARGET_ENCODERS = ("self", "ema", "frozen")
_WITH_EMA = {"target_encoder": (EMA,)}
_WITH_INFONCE = {"jepa_loss": ("infonce",)}


@dataclass(frozen=True)
class Defaults:
    """Values for options that are None unless the user sets them. Each objective has its own (`Objective.defaults`)."""

    predictors: int = 0
    predictor_order: Literal["ascending", "descending"] = "ascending"
    labels: Literal["assistant", "all", "reference"] = "assistant"
    target_grad: bool = True
    jepa_loss: str = "cosine"


@dataclass
class PairOptions(Topic):
    """Which pairs count, and what they train."""

    target_grad: bool | None = option(
        None,
        "Let gradients flow into the target views too. Default: true; false for split, next_latent, steps_to_answer and "
        "with a target_encoder other than self.",
        METHOD,
    )
    jepa_ratio: float = option(
        1.0,
        "Share of examples whose pairs are kept, sampled by seed, epoch and row; the others train as plain LM.",
        METHOD,
        at_most=1,
    )


@dataclass
class PredictorOptions(Topic):
    """Predictor tokens and readouts."""

    predictors: int | None = option(
        None,
        "K, the number of learned predictor tokens after a source view. Default: 2 for step_jepa, 1 for split, else 0.",
        METHOD,
        at_least=0,
        at_most=100,
    )
    predictor_order: Literal["ascending", "descending"] | None = option(
        None,
        "Order of the predictor tokens. Default: descending for llm_jepa, which reads <|predictor_1|> last as the published "
        "code does; else ascending.",
        METHOD,
        needs={"predictors": True},
    )
    same_predictor: bool = option(
        False,
        "One learned predictor token, repeated K times (the nanoGPT form), instead of K different ones.",
        METHOD,
        needs={"predictors": True},
    )
    target_encoder: str = option(
        "self",
        "What encodes the targets: the model itself; a moving average of its trained weights (ema); the model as it was at "
        "the start of the run (frozen); or another model with the same tokenizer, by its folder or Hub id.",
        METHOD,
        choices=TARGET_ENCODERS,
        folder=True,
    )
    last_token: int | None = option(
        None,
        "Read a view at this offset from its end, as the published code does: -1 is its last token (for a turn, "
        "the end-of-turn token; for a step, the last token of its separator). A source with predictor tokens is read at the "
        "last of them, whatever the offset (except with views standalone). Default: a view's last token (for a turn, the "
        "last token of its content).",
        VIEWS,
        secret=False,
        at_most=-1,
    )
    readout: Literal["last", "mean"] = option(
        "last",
        "What represents a view: the state of its last token, or the mean of its tokens' states. A source with predictors "
        "is read at the last of them.",
        VIEWS,
    )
    readout_layer: int | None = option(
        None,
        "Layer whose states are read (0: the embeddings, i: after layer i, -2: after the last but one). Default: -1, the "
        "last, after the final norm.",
        VIEWS,
    )

    def check(self) -> None:
        """As `Topic.check`; raises ConfigError."""
        if self.readout == "mean" and self.last_token is not None:
            raise ConfigError(
                f"{_NAME.readout}=mean reads all tokens of a view, and {_NAME.last_token} names one; leave one of them out"
            )


@dataclass
class TargetOptions(Topic):
    """Where the target views come from."""

    jepa_target_column: str | None = option(
        None,
        "Column with the text of the target view (a rationale, a plan, a second solution) for the (last) answer, in place "
        "of the answer or its step. The LM loss stays on the answer.",
        VIEWS,
    )

    def check(self) -> None:
        """As `Topic.check`; raises ConfigError."""
        # An unset shell variable gives an empty string.
        if self.jepa_target_column == "":
            raise ConfigError(
                f"{_NAME.jepa_target_column} is empty; name a column, or leave it out"
            )


@dataclass
class MaskOptions(Topic):
    """Source views of which a part is masked, as in stp.py's ``--random_span_mask`` and DLLM-JEPA (arXiv:2606.00091)."""

    mask_ratio: float = option(
        0.0,
        "Share of the source view's tokens that a learned mask token replaces, sampled again for every example and epoch. "
        "Target and LM loss see every token.",
        VIEWS,
        at_least=0,
        at_most=1,
    )
    mask_span: bool = option(
        False,
        "Mask one span that covers this share instead of single tokens.",
        VIEWS,
        needs={"mask_ratio": True},
    )


@dataclass
class EMAOptions(Topic):
    """The moving average of `target_encoder=ema`."""

    ema_momentum: float = option(
        0.99,
        "Momentum of target_encoder=ema at the start.",
        METHOD,
        needs=_WITH_EMA,
        at_least=0,
        at_most=1,
    )
    ema_momentum_end: float = option(
        1.0,
        "Momentum at the end, reached along a half-cosine schedule.",
        METHOD,
        needs=_WITH_EMA,
        at_least=0,
        at_most=1,
    )


@dataclass
class ReplayOptions(Topic):
    """Pairs of earlier examples that are trained on again (ER-JEPA, arXiv:2609.36952): JEPA + replay_weight * replayed."""

    replay_ratio: float = option(
        0.0,
        "Share of the examples that also replay the pairs of an earlier example of this run, computed again by the current "
        "model.",
        METHOD,
        at_least=0,
        at_most=1,
    )
    replay_weight: float = option(
        1.0,
        "Weight of the replayed pairs' loss, relative to lbd.",
        LOSS,
        needs={"replay_ratio": True},
        at_least=0,
    )
    replay_from: Literal["earlier", "current"] = option(
        "earlier",
        "Where replayed pairs come from: earlier optimizer steps, or the same one (the equal-compute control).",
        METHOD,
        needs={"replay_ratio": True},
    )


@dataclass
class LossOptions(Topic):
    """The JEPA loss: distance, weight and schedule, regularizers, and controls."""

    predictor_head: Literal["none", "linear", "mlp"] = option(
        "none",
        "A network applied to the source's state, trained with the model and saved next to it.",
        METHOD,
    )
    control: Literal["none", "shuffled", "random"] = option(
        "none",
        "Control arm: each source gets the target of another example in the batch (shuffled), or one fixed random vector "
        "(random).",
        METHOD,
    )
    lbd: float = option(
        0.1,
        "lambda, weight of the JEPA loss. 0 trains exactly like objective regular.",
        LOSS,
        at_least=0,
    )
    lbd_warmup_ratio: float = option(
        0.0, "Share of the run in which lambda rises from 0 to lbd.", LOSS, at_least=0, at_most=1
    )
    lbd_schedule: Literal["constant", "cosine"] = option(
        "constant", "lambda after its warm-up: constant, or half a cosine down to 0.", LOSS
    )
    jepa_until: float = option(
        1.0, "Share of the run after which lambda is 0.", LOSS, above=0, at_most=1
    )
    jepa_loss: str | None = option(
        None,
        "Distance between the predicted and the target view; or your own function, as file.py:name. Default: "
        "smooth_l1 for next_latent and steps_to_answer, else cosine.",
        LOSS,
        choices=LOSSES,
        own=True,
    )
    infonce_temperature: float = option(
        0.07, "Temperature of jepa_loss=infonce.", LOSS, needs=_WITH_INFONCE, above=0
    )
    infonce_symmetric: bool = option(
        False,
        "InfoNCE in both directions: targets must retrieve their sources as well.",
        LOSS,
        needs=_WITH_INFONCE,
    )
    regularizer: Literal["none", "vicreg", "sigreg"] = option(
        "none",
        "A term added to the JEPA loss against collapse: variance and covariance (vicreg), or SIGReg.",
        LOSS,
    )
    regularizer_weight: float | None = option(
        None,
        "Weight of the regularizer relative to the distance. Default: 1 for vicreg, 0.05 for sigreg.",
        LOSS,
        needs={"regularizer": ("vicreg", "sigreg")},
        at_least=0,
    )
    vicreg_covariance: float = option(
        0.04,
        "Weight of VICReg's covariance term relative to its variance term (1 to 25 in the paper).",
        LOSS,
        needs={"regularizer": ("vicreg",)},
        at_least=0,
    )
    sigreg_directions: int = option(
        256,
        "Random directions of SIGReg, sampled again every step.",
        LOSS,
        needs={"regularizer": ("sigreg",)},
        at_least=1,
    )
    loss_scale: Literal["mean", "reference"] = option(
        "mean",
        "mean: over the whole optimizer step. reference: over each micro-batch and not divided by their number (a bug "
        "of the published code, for comparison only).",
        LOSS,
    )
    same_flop: bool = option(
        False,
        "Take fewer steps, so that the run uses as many FLOPs as a regular one of the given length.",
        OUTPUT,
    )

    def fill_in(self) -> None:
        """See `Topic.fill_in`."""
        # Here and not in `Defaults`, because it depends on another option, not on the objective.
        if self.regularizer_weight is None:
            self.regularizer_weight = 0.05 if self.regularizer == "sigreg" else 1.0

    def check(self) -> None:
        """As `Topic.check`; raises ConfigError."""
        if self.control == "random" and self.jepa_loss == "infonce" and self.lbd:
            raise ConfigError(
                f"{_NAME.control}=random gives every source the same target, so infonce has nothing to distinguish; use "
                f"{_NAME.control}=shuffled"
            )


# At the end, because it needs the classes above; messages take option names from it.
_NAME = Names(LossOptions, PredictorOptions, TargetOptions)
