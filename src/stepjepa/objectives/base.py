"""The base class of objectives, and the lookup of objectives and losses by name.

An `Objective` defines its options (`Options`, `reads`, `defaults`), which states of a chat are compared (`pairs_of`), what
is sampled every epoch (`draw`), which modules it trains (`modules`) and the loss (`loss`). Everything else (flags, layout,
packing, masks, counts, the log) follows from these. An objective is constructed from the run's options and
holds no state.

Shapes: P pairs, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from stepjepa.config.option import Names, Option, Topic, Values, check_fields, options_of
from stepjepa.config.values import did_you_mean, given_name, load_named, source_fingerprint
from stepjepa.data.options import VIEWS, StepsOptions
from stepjepa.data.types import (
    TRUNK,
    Batch,
    Example,
    ForestOutput,
    LossPart,
    LossParts,
    Pair,
    PairsFound,
    Read,
    Span,
)
from stepjepa.errors import ConfigError, said
from stepjepa.objectives.options import (
    LOSSES,
    Defaults,
    EMAOptions,
    LossOptions,
    MaskOptions,
    PairOptions,
    PredictorOptions,
    ReplayOptions,
    TargetOptions,
)
from stepjepa.objectives.pairs import PairBuilder, masked

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from stepjepa.data.encode import TokenChat

_NAME = Names(LossOptions, MaskOptions, PredictorOptions, TargetOptions)
# Names of the parts of the loss in the log.
JEPA, REGULARIZER, REPLAY = _NAME.jepa_loss, _NAME.regularizer, "replay_loss"


class ModelView(NamedTuple):
    """The parts of the model that a loss may use, inside the wrapped model's forward.

    Attributes:
        modules: `Objective.modules`, None if the objective has none.
        vocabulary: V, entries of the LM softmax.
        embed: (N, D) input embeddings of token ids (N,).
        logits: (N, V) logits of last hidden states (N, D); with `detach` the weights of the output head get no gradient.
    """

    modules: nn.Module | None
    vocabulary: int
    embed: Callable[[Tensor], Tensor]
    logits: Callable[..., Tensor]


class Objective:
    """An objective whose pairs are compared by `--jepa_loss`. Subclasses define at least the pairs of a chat.

    Attributes:
        name: its name for ``--objective``; by default the name of the class.
        Options: dataclass of the options that only this objective has; None for none.
        reads: the shared option topics that it reads.
        defaults: its defaults for shared options whose default is None.
        forwards: the forwards that can compute it; ``inline`` needs a single branch and a single copy of trunk tokens.
        makes_pairs: whether there is anything to compare.
        takes_text: whether it also trains on plain text (`pairs_of_text`).
        aligned_targets: whether pair i gets target i of another example when targets are shuffled (see `shuffled_order`).
        needs_steps: whether it needs the steps of the answers.
        draws: whether `draw` gives an example other pairs from epoch to epoch.
        drafts: whether it defines `draft`.
        several_pairs: whether an example usually has several pairs.
        groups: the numbers of its groups of K predictor tokens, as in the tokens' names; predictor heads, if any, are per
            group.
        unread: options that it does not read, even if it reads others of the same topic; giving one a value is an error.
        vector_names: names of the source and the target of a pair, for `stepjepa inspect`.
        stream: number of its random stream, which no other draw for an example uses.
        options: those of the run; None before they are known.
        own: its own options, an instance of `Options`.

    Args:
        options: those of the run.
        own: its own options by name, for `JEPAConfig(objective=MyObjective(...))`.

    Raises:
        ConfigError: the objective has no option of that name, or its value cannot be used.
    """

    name: ClassVar[str] = ""
    Options: ClassVar[type | None] = None
    reads: ClassVar[tuple[type, ...]] = (PairOptions, LossOptions, PredictorOptions, EMAOptions)
    defaults: ClassVar[Defaults] = Defaults()
    forwards: ClassVar[tuple[str, ...]] = ("packed", "two_pass")
    makes_pairs: ClassVar[bool] = True
    takes_text: ClassVar[bool] = False
    aligned_targets: ClassVar[bool] = False
    needs_steps: bool = False
    drafts: ClassVar[bool] = False
    several_pairs: bool = False
    groups: tuple[int, ...] = (1,)
    unread: frozenset[str] = frozenset()
    vector_names: tuple[str, str] = ("source", "target")
    stream: ClassVar[int] = 6

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.name = cls.name or cls.__name__

    def __init__(self, options: Topic | None = None, **own: Any):
        self.options: Any = options
        self.own: Any = options
        known = options_with_defaults(type(self))
        if self.Options is not None and isinstance(options, self.Options):
            return
        # The options of a user's class are not fields of the run's options; `objective_options` carries their values.
        users_own = not is_built_in(type(self))
        if users_own and options is not None:
            carried = cast(Any, options).objective_options or {}
            own = {**carried, **own}
        for name in own:
            if name not in known:
                near = did_you_mean(name, known)
                raise ConfigError(f"objective {self.name} has no option {name!r}{near}")
        self.own = None
        if self.Options is not None:
            self.own = self.Options(**own)
            check_fields(self.own)
        if users_own and hasattr(self.own, "check"):
            self.own.check()

    def __reduce__(self) -> Any:
        """Pickle the name of the class, so that worker processes import its file."""
        return _construct, (given_name(type(self)), self.options)

    @property
    def code(self) -> dict[str, str]:
        """Fingerprints of the files of a user's objective and loss, by their role; empty for built-in ones."""
        fingerprints = {}
        if not is_built_in(type(self)):
            fingerprints["code of the objective"] = source_fingerprint(type(self))
        if self.makes_pairs and self.options.jepa_loss not in LOSSES:
            fingerprints["code of the loss"] = source_fingerprint(
                find_distance(self.options.jepa_loss)
            )
        return fingerprints

    def topics(self) -> tuple[type, ...]:
        """All option dataclasses that it reads, besides those that every run reads."""
        steps = (StepsOptions,) if self.needs_steps else ()
        own_options = () if self.Options is None else (self.Options,)
        return (*self.reads, *steps, *own_options)

    def check(self) -> None:
        """Check that the options of the run fit this objective and each other.

        Raises:
            ConfigError: they do not; the message names the options.
        """
        # A default may have been filled in, so only a value other than the default is known to come from the user.
        for name in sorted(self.unread):
            value = getattr(self.options, name)
            if value != getattr(self.defaults, name, options_of(type(self.options))[name].default):
                method = ", ".join((self.name, *self.about))
                raise ConfigError(f"{method}: {name}={value} has no effect; leave {name} out")
        if self.options.forward not in ("auto", *self.forwards):
            raise ConfigError(
                f"forward={self.options.forward} cannot compute {self.options.objective}; use forward "
                f"{' or '.join(self.forwards)}"
            )
        # `inline` has one sequence, which holds the chat as the LM loss reads it, and nothing else.
        if self.options.forward == "inline" and (self.target_column or self.mask_ratio):
            raise ConfigError(
                f"forward=inline has only the tokens of the chat; {_NAME.jepa_target_column} and {_NAME.mask_ratio} need "
                "forward packed"
            )

    # Descriptions for summaries

    @property
    def takes_predictors(self) -> bool:
        """Whether it can have predictor tokens."""
        return PredictorOptions in self.reads

    @property
    def about(self) -> tuple[str, ...]:
        """Its own options and those of the views that are not at their defaults, each as ``name value``."""
        shared = options_of(*self.reads)
        views = {name: option for name, option in shared.items() if option.group == VIEWS}
        words = []
        for name, option in (views | options_with_defaults(type(self))).items():
            value = getattr(self.options if name in views else self.own, name)
            if value != option.default and not option.secret:
                words.append(f"{name} {value}")
        return tuple(words)

    @property
    def distance_name(self) -> str:
        """Name of its loss."""
        return str(self.options.jepa_loss)

    @property
    def draws(self) -> bool:
        """See the class."""
        return self.mask_ratio > 0

    @property
    def predictors(self) -> int:
        """K, the number of predictor tokens of a group."""
        return self.options.predictors or 0

    @property
    def learned_tokens(self) -> int:
        """Number of learned token rows of a group: its predictors (one if a single one is repeated), and the mask token."""
        different = min(self.predictors, 1) if self.options.same_predictor else self.predictors
        return different + (self.mask_ratio > 0)

    @property
    def mask_ratio(self) -> float:
        """Share of the source view's tokens that are masked."""
        return self.options.mask_ratio if MaskOptions in self.reads else 0.0

    @property
    def one_pair(self) -> bool:
        """Whether an example keeps its first pair only. With `inline`, a second pair would see the first's predictors."""
        return self.options.forward == "inline"

    @property
    def layer(self) -> int | None:
        """The layer whose states are read (see `Read.layer`)."""
        layer = self.options.readout_layer if self.takes_predictors else None
        # In a `Read`, the last layer, after the final norm, is None.
        return None if layer == -1 else layer

    @property
    def layers(self) -> tuple[int | None, ...]:
        """All layers whose states are read."""
        return (self.layer,)

    @property
    def target_column(self) -> str | None:
        """The column with the text of the target views; None if they are views of the chat."""
        return self.options.jepa_target_column if TargetOptions in self.reads else None

    # From chats to examples

    def builder(self, ids: np.ndarray, target: np.ndarray | None = None) -> PairBuilder:
        """A `PairBuilder` with the run's options, for a chat with the tokens `ids` (T,)."""
        options = self.options
        mean, masks = options.readout == "mean", self.mask_ratio > 0
        return PairBuilder(
            ids, self.predictors, options.last_token, mean, self.layer, target, masks
        )

    def cue_of(self, answer: str) -> tuple[int, int] | None:
        """The characters [start, end) of an answer's text that announce the final answer; their tokens become `Turn.cue`.
        None if the objective needs no cue or the answer has none."""
        return None

    def pairs_of(self, chat: TokenChat) -> PairsFound:
        """The pairs of a tokenised chat."""
        raise NotImplementedError

    def pairs_of_text(self, trunk: np.ndarray) -> PairsFound:
        """The pairs of a plain text of tokens (T,); only with `takes_text`."""
        raise NotImplementedError

    def pairs_between(self, source: Span, target: Span) -> int:
        """How many pairs `draw` makes from one entry of an example's `view_spans`, for the data report."""
        return 1

    def draw(self, example: Example, rng: np.random.Generator) -> Example:
        """Sample the form that an example takes in one epoch.

        Args:
            rng: seeded by the run's seed, the epoch and the row; the only source of randomness.
        """
        if not self.mask_ratio:
            return example
        return masked(example, self.mask_ratio, self.options.mask_span, rng)

    # From states to the loss

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts of its loss in the log."""
        names = [JEPA]
        if self.options.regularizer != "none":
            names.append(REGULARIZER)
        if self.replay_ratio:
            names.append(REPLAY)
        return tuple(names)

    @property
    def replay_ratio(self) -> float:
        """Share of the examples that replay the pairs of an earlier one."""
        return self.options.replay_ratio if ReplayOptions in self.reads else 0.0

    def counts(self, batch: Batch) -> dict[str, float]:
        """The divisor of each part of the loss, by its name."""
        # They depend only on the layout, so the divisors of a step are known before its first forward.
        counts = dict.fromkeys(self.part_names, float(batch.weight))
        if self.replay_ratio:
            counts[REPLAY] = float(batch.replayed_weight)
        return counts

    def modules(self, width: int, vocabulary: int) -> nn.Module | None:
        """The modules that it trains alongside the model, for states of `width` and a softmax over `vocabulary`, if any.

        They become part of the model, and are saved and loaded with the predictor tokens. The caller restores the global
        random generators after this call.
        """
        return None

    def flops(self, pairs: int, width: int, vocabulary: int) -> float:
        """FLOPs of its modules and of its use of the output head for this many pairs, forward and backward, for states of
        `width` and a softmax over `vocabulary`."""
        return 0.0

    def source_states(self, output: ForestOutput, batch: Batch, view: ModelView) -> Tensor:
        """The source states (P, D) that the loss compares; arguments as in `loss`."""
        return output.source_states

    def draft(self, state_1D: Tensor, token_1: Tensor, count: int, view: ModelView) -> Tensor:
        """The token (1,) after a state (1, D), and up to `count` further tokens that the modules predict: (1 + n,)."""
        raise NotImplementedError

    # What a source is compared with, and how. The next three members handle the targets' gradient and the controls.

    @property
    def separate_targets(self) -> bool:
        """Whether the targets, which need no gradient, get a separate forward pass."""
        return not self.options.target_grad

    @property
    def shuffle_targets(self) -> bool:
        """Whether the collator gives each source the target of another example of its batch."""
        return self.makes_pairs and bool(self.options.control == "shuffled")

    def target_states(self, output: ForestOutput) -> Tensor:
        """The target states (P, D) that the loss compares with, detached unless targets have a gradient; with
        ``control=random``, one fixed random vector for all pairs."""
        import torch

        target = output.target_states
        if self.options.control == "random":
            # Drawn on the CPU, so that every device and process has the same vector.
            generator = torch.Generator().manual_seed(self.options.seed)
            vector_D = torch.randn(target.shape[1], generator=generator)
            target = vector_D.to(target.device).expand_as(target)
        return target if self.options.target_grad else target.detach()

    def loss(self, output: ForestOutput, batch: Batch, view: ModelView, step: int) -> LossParts:
        """The parts of the loss on one micro-batch; called inside the wrapped model's forward.

        Args:
            output: with the states of `source_states` and `target_states`.
            view: the parts of the model that the loss may use.
            step: optimizer step, from 0.
        """
        # The replayed pairs come last.
        current, replayed = slice(batch.current), slice(batch.current, None)
        weight = batch.weight
        parts = {JEPA: LossPart(self._weighted_sum(output, batch, current), weight)}
        if self.options.regularizer != "none":
            # A regularizer is a mean over all processes. It is multiplied by the weight of this process's pairs, and
            # `total_loss` divides by the weight of all pairs, so it counts once in the sum over the processes.
            source_PD, target_PD = output.source_states, output.target_states
            value = self._regularizer(source_PD[current], target_PD[current], step)
            parts[REGULARIZER] = LossPart(value * weight, weight)
        if self.replay_ratio:
            total = self._weighted_sum(output, batch, replayed)
            parts[REPLAY] = LossPart(total, batch.replayed_weight, self.options.replay_weight)
        return parts

    def _weighted_sum(self, output: ForestOutput, batch: Batch, pairs: slice) -> Tensor:
        losses_P = self.distances(output.source_states[pairs], output.target_states[pairs])
        if batch.weights is not None:
            losses_P = losses_P * batch.weights[pairs]
        return losses_P.sum()

    def distances(self, source_PD: Tensor, target_PD: Tensor) -> Tensor:
        """The loss of every pair, (P,) float32, by ``--jepa_loss``."""
        from stepjepa.losses.distances import infonce_loss

        options = self.options
        if options.jepa_loss == "infonce":
            return infonce_loss(
                source_PD, target_PD, options.infonce_temperature, options.infonce_symmetric
            )
        return find_distance(options.jepa_loss)(source_PD, target_PD).float()

    def _regularizer(self, source_PD: Tensor, target_PD: Tensor, step: int) -> Tensor:
        """The weighted regularizer of one micro-batch over all processes, () float32; `step` seeds SIGReg's directions."""
        from stepjepa.losses.regularizers import (
            random_directions,
            sigreg_regularizer,
            vicreg_regularizer,
        )

        options = self.options
        if options.regularizer == "vicreg":
            value = vicreg_regularizer(source_PD, target_PD, options.vicreg_covariance)
        else:
            directions = random_directions(
                source_PD.shape[1], options.sigreg_directions, step, source_PD.device
            )
            value = sigreg_regularizer(source_PD, target_PD, directions)
        return (options.regularizer_weight or 0.0) * value


class TrunkObjective(Objective):
    """An objective that compares states of the trunk with each other: no predictor tokens, and one pass for both sides."""

    reads = (PairOptions, LossOptions)
    predictors = 0
    separate_targets = False
    unread = frozenset({_NAME.predictors, _NAME.target_encoder})


class LookAhead(TrunkObjective):
    """An objective that looks ahead from the state before each labelled token, paired with the state of that token.

    Attributes:
        sources: how many states at the start of a labelled run are sources; None for all.
    """

    takes_text = True
    several_pairs = True
    aligned_targets = True
    sources: int | None = None
    unread = TrunkObjective.unread | {_NAME.predictor_head}

    def pairs_of(self, chat: TokenChat) -> PairsFound:
        """View spans: for each run of labelled tokens, the tokens one place earlier as sources, and the run as targets."""
        # Token 0 has no state before it.
        runs = [Span(max(start, 1), stop) for start, stop in chat.labels if stop > 1]
        return PairsFound(
            view_spans=tuple((Span(start - 1, stop - 1), Span(start, stop)) for start, stop in runs)
        )

    def pairs_of_text(self, trunk: np.ndarray) -> PairsFound:
        """View spans over all tokens (T,); a text has at least two."""
        return PairsFound(view_spans=((Span(0, len(trunk) - 1), Span(1, len(trunk))),))

    def pairs_between(self, source: Span, target: Span) -> int:
        """See `Objective`."""
        return len(range(*source)[: self.sources])

    def draw(self, example: Example, rng: np.random.Generator) -> Example:
        """The example with one pair for each source."""
        places = (
            place for source, _ in example.view_spans for place in range(*source)[: self.sources]
        )
        pairs = tuple(Pair(Read.one(TRUNK, place), Read.one(TRUNK, place + 1)) for place in places)
        return example._replace(pairs=pairs, view_spans=())


# Lookup

# Built-in objectives: module -> class, by name because these modules import this one. The first one has no pairs.
_BUILT_IN = {
    "regular": "Regular",
    "llm_jepa": "LLMJEPA",
    "step_jepa": "StepJEPA",
    "split": "Split",
    "semantic_tube": "SemanticTube",
    "next_latent": "NextLatent",
    "multi_token": "MultiToken",
    "future_summary": "FutureSummary",
    "steps_to_answer": "StepsToAnswer",
}
OBJECTIVES = tuple(_BUILT_IN)


def find_objective(name: str | Objective) -> type[Objective]:
    """The class of an objective: a built-in one, or ``file.py:Class`` or ``package.module:Class``, which is imported.

    Raises:
        ConfigError: the name is unknown, or the class is not an objective.
    """
    if isinstance(name, Objective):
        return type(name)
    if name in _BUILT_IN:
        return getattr(import_module(f"{__package__}.{name}"), _BUILT_IN[name])  # type: ignore[no-any-return]
    cls = load_named(name, "objective", OBJECTIVES)
    if not (isinstance(cls, type) and issubclass(cls, Objective)):
        raise ConfigError(f"objective {name}: is not a subclass of stepjepa.objectives.Objective")
    return cls


def find_distance(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The distance function of ``--jepa_loss``, except ``infonce``: two tensors (P, D) to (P,).

    Raises:
        ConfigError: the name is unknown.
    """
    from stepjepa.losses.distances import DISTANCES

    return DISTANCES.get(name) or load_named(name, "jepa_loss", LOSSES)  # type: ignore[return-value]


def check_distance(name: str) -> None:
    """Try a user's function for ``--jepa_loss`` on two pairs.

    Raises:
        ConfigError: the name is unknown, or the function does not return one number per pair.
    """
    import torch

    function = find_distance(name)
    try:
        shape: object = tuple(function(torch.ones(2, 8), torch.eye(2, 8)).shape)
    except Exception as error:
        shape = said(error)
    if shape != (2,):
        raise ConfigError(
            f"jepa_loss {name}: must return one number per pair, (P,), for states (P, D); for (2, 8): {shape}"
        )


def is_built_in(cls: type) -> bool:
    """Whether a class belongs to this library. The options of built-in objectives are options of every run."""
    return cls.__module__.startswith("stepjepa.")


def built_in() -> dict[str, type[Objective]]:
    """The classes of the built-in objectives, by name."""
    return {name: find_objective(name) for name in OBJECTIVES}


def objective_of(options: LossOptions) -> Objective:
    """The objective of a run. With ``lbd`` 0 it is `regular`, so that no pair is computed.

    Raises:
        ConfigError: see `find_objective`.
    """
    return find_objective(options.objective if options.lbd else OBJECTIVES[0])(options)


def own_options(name: str) -> type | None:
    """The option dataclass that a user's objective adds to a run; None for a built-in one."""
    cls = find_objective(name)
    if is_built_in(cls) or not options_with_defaults(cls):
        return None
    return cls.Options


def options_with_defaults(cls: type[Objective]) -> dict[str, Option]:
    """The options of an objective's `Options` by name."""
    return {} if cls.Options is None else options_of(cls.Options)


def idle_options(objective: Objective) -> frozenset[str]:
    """The options of other objectives that this one does not read."""
    topics = {
        topic
        for cls in built_in().values()
        for topic in (*cls.reads, StepsOptions, cls.Options)
        if topic
    }
    read = options_of(*objective.topics()).keys() - objective.unread
    return frozenset(options_of(*topics)) - read


def trained_pairs(settings: Values) -> bool:
    """Whether a run with these recorded settings trained on pairs. It imports none of the user's files."""
    name = settings.get("objective")
    return bool(name and name != OBJECTIVES[0] and settings.get("lbd"))


def drafting_objective(settings: Values) -> Objective | None:
    """The objective of a run with these recorded settings, with only its own options; None if it drafts nothing."""
    chosen = built_in().get(str(settings.get("objective")))
    if chosen is None or chosen.Options is None or not chosen.drafts:
        return None
    values = {name: settings[name] for name in options_of(chosen.Options) if name in settings}
    return chosen(chosen.Options(**values))


def _construct(name: str, options: Any) -> Objective:
    # A module-level function, because pickle stores it by name.
    return find_objective(name)(options)
