"""What an objective is, and where objectives are found.

An `Objective` says which options it has (`Options`, `reads`, `defaults`), which states of a chat are compared (`pairs_of`),
what is sampled every epoch (`draw`), which modules it trains (`modules`) and what the loss is (`loss`). Everything else
(flags, layout, packing, masks, counts, the log) follows from these. It is made of the run's options and holds no state.

Shapes: P pairs, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from stepjepa.config.option import Names, Option, Topic, check_fields, options_of
from stepjepa.config.values import did_you_mean, given_name, load_named, source_fingerprint
from stepjepa.data.options import StepsOptions
from stepjepa.data.types import TRUNK, Batch, Example, ForestOutput, LossPart, LossParts, Pair, PairsFound, Read, Span
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
    import torch
    from torch import nn

    from stepjepa.data.encode import TokenChat

_NAME = Names(LossOptions, MaskOptions, PredictorOptions, TargetOptions)
# Parts of the loss, as the log has them.
JEPA, REGULARIZER, REPLAY = _NAME.jepa_loss, _NAME.regularizer, "replay_loss"


class ModelView(NamedTuple):
    """The model as a loss may use it, inside the wrapped model's forward.

    Attributes:
        modules: those of the objective (`Objective.modules`), None where it has none.
        vocabulary: V, entries of the LM softmax.
        embed: (N, D) input embeddings of token ids (N,).
        logits: (N, V) logits for last hidden states (N, D); with `detach` the weights of the output head get no gradient.
        gather: the rows (P, D) of all processes, with gradient, and where this one's begin (`losses.gather`).
    """

    modules: nn.Module | None
    vocabulary: int
    embed: Callable[[torch.Tensor], torch.Tensor]
    logits: Callable[..., torch.Tensor]
    gather: Callable[[torch.Tensor], tuple[torch.Tensor, int]]


class Objective:
    """An objective whose pairs are compared by `--jepa_loss`. Subclasses say at least what pairs a chat has.

    Attributes:
        name: what ``--objective`` calls it; of one's own, by default the name of the class.
        Options: dataclass of the options that it alone has; None for none.
        reads: the shared topics of options that it reads; all where it reads predictors.
        defaults: of shared options that are left open.
        forwards: those that can compute it; ``inline`` asks for one branch and one copy of the trunk's tokens.
        makes_pairs: whether there is anything to compare.
        takes_text: whether it also trains on plain text (`pairs_of_text`).
        halves: whether source and target together are the text.
        aligned_targets: whether a shuffled target is the one at the same place among the pairs of the other example.
        needs_steps: whether the steps of the answers are found for it; before the options are known, whether they may be.
        draws: whether `draw` does anything.
        drafts: whether `draft` does anything.
        several_pairs: whether an example usually has several pairs.
        groups: of K predictor tokens, each with a predictor head of its own, by the numbers in the tokens' names.
        unread: options that it does not read though it may read others of their topics; they must be left out.
        brief: its form in a word, where it has several.
        vector_names: what the source and the target of a pair are called where they are sums of states.
        stream: number of its random numbers, which no other draw of an example uses.
        options: of the run; None before they are known.
        own: its own options, an instance of `Options`.

    Args:
        options: of the run.
        own: its own options by name, for `JEPAConfig(objective=MyObjective(...))`.

    Raises:
        ConfigError: an option of its own that it does not have, or a value that cannot be used.
    """

    name: ClassVar[str] = ""
    Options: ClassVar[type | None] = None
    reads: ClassVar[tuple[type, ...]] = (PairOptions, LossOptions, PredictorOptions, EMAOptions)
    defaults: ClassVar[Defaults] = Defaults()
    forwards: ClassVar[tuple[str, ...]] = ("packed", "two_pass")
    makes_pairs: ClassVar[bool] = True
    takes_text: ClassVar[bool] = False
    halves: ClassVar[bool] = False
    aligned_targets: ClassVar[bool] = False
    needs_steps: bool = False
    drafts: ClassVar[bool] = False
    several_pairs: bool = False
    groups: tuple[int, ...] = (1,)
    unread: frozenset[str] = frozenset()
    brief: str = ""
    vector_names: tuple[str, str] = ("source", "target")
    stream: ClassVar[int] = 6

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.name = cls.name or cls.__name__

    def __init__(self, options: Topic | None = None, **own: Any):
        self.options: Any = options
        self.own: Any = options
        options_with_defaults(type(self))
        if self.Options is not None and isinstance(options, self.Options):
            return
        # The options of a user's own class are no fields of the run's options, which carry their values.
        users_own = not is_built_in(type(self))
        values = dict(own)
        if users_own and options is not None:
            carried = cast(Any, options).objective_options or {}
            values = {**carried, **own}
        self.own = self._checked(values)
        if users_own and hasattr(self.own, "check"):
            with explaining_options(type(self), "are refused by their check()"):
                self.own.check()

    def _checked(self, values: Mapping[str, Any]) -> object:
        """Its own options by name as an instance of `Options`; None where it has none."""
        known = options_with_defaults(type(self))
        for name in values:
            if name not in known:
                near = did_you_mean(name, known)
                raise ConfigError(f"objective {self.name} has no option {name!r}{near}")
        with explaining_options(type(self), "cannot be made"):
            own = self.Options and self.Options(**values)
        if own is not None:
            check_fields(own)
        return own

    def __reduce__(self) -> Any:
        """By the name of its class, so that worker processes import the file that it is in."""
        return _made, (given_name(type(self)), self.options)

    @property
    def code(self) -> dict[str, str]:
        """A fingerprint of the file of one's own class or loss, by which of them it is; empty for built-in ones."""
        fingerprints = {} if is_built_in(type(self)) else {"code of the objective": source_fingerprint(type(self))}
        if self.makes_pairs and self.options.jepa_loss not in LOSSES:
            fingerprints["code of the loss"] = source_fingerprint(find_distance(self.options.jepa_loss))
        return fingerprints

    def topics(self) -> tuple[type, ...]:
        """All dataclasses of options that it reads, besides those that every run reads."""
        own = () if self.Options is None else (self.Options,)
        return (*self.reads, *((StepsOptions,) if self.needs_steps else ()), *own)

    def check(self) -> None:
        """Check the options of the run with each other.

        Raises:
            ConfigError: they cannot be used with this objective; the message names the options.
        """
        for name in sorted(self.unread):
            value = getattr(self.options, name)
            if value != getattr(self.defaults, name, options_of(type(self.options))[name].default):
                called = f"{self.name} {self.brief}".strip()
                raise ConfigError(f"{called} does not read {name}={value}; leave {name} out")
        if self.options.forward not in ("auto", *self.forwards):
            able = [name for name, cls in built_in().items() if self.options.forward in cls.forwards]
            raise ConfigError(
                f"forward={self.options.forward} cannot compute {self.options.objective}; use forward "
                f"{' or '.join(self.forwards)}, or objective {' or '.join(able)}"
            )
        if self.options.forward == "inline" and self.target_column:
            raise ConfigError(
                f"forward=inline isolates a view inside the chat, and {_NAME.jepa_target_column}={self.target_column} is "
                "not in it; use forward packed"
            )
        if self.options.forward == "inline" and self.mask_ratio:
            raise ConfigError(
                f"forward=inline reads the source on the chat, whose tokens {_NAME.mask_ratio} would hide from the LM loss; "
                "use forward packed"
            )

    # What it is called in summaries

    @property
    def label(self) -> str:
        """Its name; that of one's own is as it was given."""
        return self.name if is_built_in(type(self)) else str(self.options.objective)

    @property
    def takes_predictors(self) -> bool:
        """Whether predictor tokens can be read."""
        return PredictorOptions in self.reads

    def notes(self, given: Collection[str]) -> list[str]:
        """Lines to print before a run; `given` are the names of the options that were given."""
        return []

    @property
    def about(self) -> tuple[str, ...]:
        """Its own options in a few words each."""
        own = {} if self.Options is None else options_of(self.Options)
        values = {name: getattr(self.own, name) for name, one in own.items() if not one.secret}
        return tuple(f"{name} {value}" for name, value in values.items() if value is not None)

    @property
    def distance_name(self) -> str:
        """What its loss is called."""
        return str(self.options.jepa_loss)

    @property
    def draws(self) -> bool:
        """See the class."""
        return self.mask_ratio > 0

    @property
    def sampled(self) -> bool:
        """Whether the pairs of an example differ from epoch to epoch."""
        return self.draws

    @property
    def predictors(self) -> int:
        """K, predictor tokens of one group."""
        return self.options.predictors or 0

    @property
    def learned_tokens(self) -> int:
        """Tokens that it trains in every group: the predictors, or the one that is repeated, and last the mask token."""
        different = min(self.predictors, 1) if self.options.same_predictor else self.predictors
        return different + (self.mask_ratio > 0)

    @property
    def mask_ratio(self) -> float:
        """Share of a source view's tokens that are masked."""
        return self.options.mask_ratio if MaskOptions in self.reads else 0.0

    @property
    def one_pair(self) -> bool:
        """Whether an example keeps its first pair only (`inline`, where a second would see the first one's predictors)."""
        return self.options.forward == "inline"

    @property
    def layer(self) -> int | None:
        """Behind which layer states are read (see `Read.layer`)."""
        layer = self.options.readout_layer if self.takes_predictors else None
        return None if layer == -1 else layer

    @property
    def layers(self) -> tuple[int | None, ...]:
        """Those whose states are read."""
        return (self.layer,)

    @property
    def target_column(self) -> str | None:
        """The column with the text of the target views; None where they are views of the chat."""
        return self.options.jepa_target_column if TargetOptions in self.reads else None

    @property
    def readout(self) -> tuple[str, ...]:
        """What is read, in a few words each, where that is not the default."""
        mean = "mean over a view" if self.takes_predictors and self.options.readout == "mean" else ""
        layer = f"layer {self.layer}" if self.takes_predictors and self.layer is not None else ""
        column = f"target from {self.target_column}" if self.target_column else ""
        masks = ""
        if self.mask_ratio:
            how = "as one span" if self.options.mask_span else "token by token"
            masks = f"{self.mask_ratio:.0%} of the source masked {how}"
        return tuple(filter(None, (mean, layer, column, masks)))

    # From chats to examples

    def builder(self, ids: np.ndarray, target: np.ndarray | None = None) -> PairBuilder:
        """Collects the pairs of a chat of tokens `ids` (T,), read as the run's options say; `target`: see `PairBuilder`."""
        options = self.options
        mean, masks = options.readout == "mean", self.mask_ratio > 0
        return PairBuilder(ids, self.predictors, options.last_token, mean, self.layer, target, masks)

    def cue_of(self, answer: str) -> tuple[int, int] | None:
        """Where the words that announce the final answer stand in the text of an answer, [start, end); the chat's turns then
        have their tokens (`Turn.cue`). None where it needs none."""
        return None

    def pairs_of(self, chat: TokenChat) -> PairsFound:
        """The pairs of a tokenised chat."""
        raise NotImplementedError

    def pairs_of_text(self, trunk: np.ndarray) -> PairsFound:
        """The pairs of a piece of plain text of (T,) tokens; only with `takes_text`."""
        raise NotImplementedError

    def pairs_between(self, source: Span, target: Span) -> int:
        """How many pairs `draw` makes of two of an example's `view_spans`, for the data report."""
        return 1

    def draw(self, example: Example, rng: np.random.Generator) -> Example:
        """The example as it is trained on in one epoch.

        Args:
            rng: seeded by the run's seed, the epoch and the row; the only source of randomness.
        """
        return masked(example, self.mask_ratio, self.options.mask_span, rng) if self.mask_ratio else example

    # From states to the loss

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts of its loss, as the log has them."""
        names = [JEPA]
        if self.options.regularizer != "none":
            names.append(REGULARIZER)
        if self.replay_ratio:
            names.append(REPLAY)
        return tuple(names)

    @property
    def replay_ratio(self) -> float:
        """Share of the examples that bring along the pairs of another one."""
        return self.options.replay_ratio if ReplayOptions in self.reads else 0.0

    def counts(self, batch: Batch) -> dict[str, float]:
        """What the parts of the loss are divided by, by name, known before the forward."""
        counts = dict.fromkeys(self.part_names, float(batch.weight))
        if self.replay_ratio:
            counts[REPLAY] = float(batch.replayed_weight)
        return counts

    def modules(self, width: int, vocabulary: int) -> nn.Module | None:
        """What it trains beside the model, for states of `width` and a softmax over `vocabulary`; None for nothing.

        It becomes part of the model, and is saved and loaded with the predictor tokens. The global random generators are put
        back after this call.
        """
        return None

    def flops(self, pairs: int, width: int, vocabulary: int) -> float:
        """FLOPs of what it computes with its modules and the output head for so many pairs, forward and backward; of states
        of `width` and a softmax over `vocabulary`."""
        return 0.0

    def source_states(self, output: ForestOutput, batch: Batch, view: ModelView) -> torch.Tensor:
        """The source states (P, D) that the loss compares; the arguments are those of `loss`."""
        return output.source_states

    def draft(self, state_1D: torch.Tensor, token_1: torch.Tensor, count: int, view: ModelView) -> torch.Tensor:
        """The token (1,) that follows a state (1, D), and up to `count` further ones that its modules predict, (1 + n,)."""
        raise NotImplementedError

    # What a source is compared with: the next three alone decide on the targets' gradient and on controls; `distances`: how.

    @property
    def separate_targets(self) -> bool:
        """Whether the targets, which need no gradient, go through a forward pass of their own."""
        return not self.options.target_grad

    @property
    def shuffle_targets(self) -> bool:
        """Whether each source gets the target of another example of its batch (a collator sees to it)."""
        return self.makes_pairs and bool(self.options.control == "shuffled")

    def target_states(self, output: ForestOutput) -> torch.Tensor:
        """The target states (P, D) that the loss compares with: without their graph, or one fixed random vector for all."""
        import torch

        target = output.target_states
        if self.options.control == "random":
            generator = torch.Generator().manual_seed(self.options.seed)
            return torch.randn(target.shape[1], generator=generator).to(target.device).expand_as(target)
        return target if self.options.target_grad else target.detach()

    def loss(self, output: ForestOutput, batch: Batch, view: ModelView, step: int) -> LossParts:
        """The parts of the loss on one micro-batch; called inside the wrapped model's forward.

        Args:
            output: its states are those of `source_states` and `target_states`.
            view: the model, as far as a loss may use it.
            step: optimizer step, from 0.
        """
        sides = output.source_states, output.target_states
        # The replayed pairs come last.
        source_PD, target_PD = (states[: batch.current] for states in sides)
        weights_P = None if batch.weights is None else batch.weights[: batch.current]
        weight = batch.weight
        parts = {JEPA: LossPart(self._weighted_sum(source_PD, target_PD, weights_P), weight)}
        if self.options.regularizer != "none":
            # Times the weight of all pairs, so that dividing by it gives the regularizer back.
            value = self._regularizer(source_PD, target_PD, step)
            parts[REGULARIZER] = LossPart(value * weight, weight)
        if self.replay_ratio:
            source_PD, target_PD = (states[batch.current :] for states in sides)
            weights_P = None if batch.weights is None else batch.weights[batch.current :]
            total = self._weighted_sum(source_PD, target_PD, weights_P)
            parts[REPLAY] = LossPart(total, batch.replayed_weight, self.options.replay_weight)
        return parts

    def _weighted_sum(
        self, source_PD: torch.Tensor, target_PD: torch.Tensor, weights_P: torch.Tensor | None
    ) -> torch.Tensor:
        losses_P = self.distances(source_PD, target_PD)
        return losses_P.sum() if weights_P is None else (losses_P * weights_P).sum()

    def distances(self, source_PD: torch.Tensor, target_PD: torch.Tensor) -> torch.Tensor:
        """The loss of every pair, (P,) float32, by ``--jepa_loss``."""
        from stepjepa.losses.distances import infonce_loss

        options = self.options
        if options.jepa_loss == "infonce":
            return infonce_loss(source_PD, target_PD, options.infonce_temperature, options.infonce_symmetric)
        return find_distance(options.jepa_loss)(source_PD, target_PD).float()

    def _regularizer(self, source_PD: torch.Tensor, target_PD: torch.Tensor, step: int) -> torch.Tensor:
        """The weighted regularizer of one micro-batch over all processes, () float32; `step` draws SIGReg's directions."""
        from stepjepa.losses.regularizers import random_directions, sigreg_regularizer, vicreg_regularizer

        options = self.options
        if options.regularizer == "vicreg":
            value = vicreg_regularizer(source_PD, target_PD, 1.0, options.vicreg_covariance)
        else:
            directions = random_directions(source_PD.shape[1], options.sigreg_directions, step, source_PD.device)
            value = sigreg_regularizer(source_PD, target_PD, directions)
        return (options.regularizer_weight or 0.0) * value


class TrunkObjective(Objective):
    """An objective that compares states of the trunk with each other: no predictor tokens, and one pass for both sides."""

    reads = (PairOptions, LossOptions)
    predictors = 0
    separate_targets = False
    draws = True  # an example's pairs are made when it is drawn, also where they are always the same
    unread = frozenset({_NAME.predictors, _NAME.target_encoder})


class LookAhead(TrunkObjective):
    """An objective that looks ahead from the states before labelled tokens: each is paired with the state of its token.

    Attributes:
        sources: how many states of a labelled run are sources, from its first on; None for all.
    """

    takes_text = True
    several_pairs = True
    sampled = False
    aligned_targets = True
    sources: int | None = None
    unread = TrunkObjective.unread | {_NAME.predictor_head}

    def pairs_of(self, chat: TokenChat) -> PairsFound:
        """The labelled tokens, run by run, and the tokens before them."""
        runs = [Span(max(start, 1), stop) for start, stop in chat.labels if stop > 1]
        return PairsFound(view_spans=tuple((Span(start - 1, stop - 1), Span(start, stop)) for start, stop in runs))

    def pairs_of_text(self, trunk: np.ndarray) -> PairsFound:
        """All (T,) tokens, of which a text has two or more."""
        return PairsFound(view_spans=((Span(0, len(trunk) - 1), Span(1, len(trunk))),))

    def pairs_between(self, source: Span, target: Span) -> int:
        """See `Objective`."""
        return len(range(*source)[: self.sources])

    def draw(self, example: Example, rng: np.random.Generator) -> Example:
        """It with its pairs."""
        places = (place for source, _ in example.view_spans for place in range(*source)[: self.sources])
        pairs = tuple(Pair(Read.one(TRUNK, place), Read.one(TRUNK, place + 1)) for place in places)
        return example._replace(pairs=pairs, view_spans=())


# Where objectives are found

# The built-in ones, by the module that each is in; the first has no pairs.
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
    """The class of an objective: a built-in one, ``file.py:Class`` or ``package.module:Class``, which is imported.

    Raises:
        ConfigError: there is none of that name, or it is no objective.
    """
    if isinstance(name, Objective):
        return type(name)
    if name in _BUILT_IN:
        return getattr(import_module(f"{__package__}.{name}"), _BUILT_IN[name])  # type: ignore[no-any-return]
    cls = load_named(name, "objective", OBJECTIVES)
    if not (isinstance(cls, type) and issubclass(cls, Objective)):
        raise ConfigError(f"objective {name}: is no class made from stepjepa.objectives.Objective")
    return cls


def find_distance(name: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The distance of ``--jepa_loss``, ``infonce`` apart: of two (P, D) tensors, (P,). One's own is tried on two pairs.

    Raises:
        ConfigError: there is none of that name, or it does not return one number a pair.
    """
    from stepjepa.losses.distances import DISTANCES

    if name in DISTANCES:
        return DISTANCES[name]
    function: Any = load_named(name, "jepa_loss", LOSSES)
    if wrong := _trial(function):
        raise ConfigError(f"jepa_loss {name}: must return one number a pair, (P,), for states (P, D); {wrong}")
    return function  # type: ignore[no-any-return]


@cache
def _trial(function: Any) -> str:
    """What is wrong with a function for ``--jepa_loss``, empty for nothing."""
    import torch

    try:
        losses_P = function(torch.ones(2, 8), torch.eye(2, 8))
    except Exception as error:
        return f"it fails: {said(error)}"
    if not isinstance(losses_P, torch.Tensor) or losses_P.shape != (2,):
        return f"for (2, 8) it returns {tuple(losses_P.shape) if isinstance(losses_P, torch.Tensor) else losses_P!r}"
    return ""


def is_built_in(cls: type) -> bool:
    """Whether a class belongs to this library; the options of such objectives are options of every run."""
    return cls.__module__.startswith("stepjepa.")


def built_in() -> dict[str, type[Objective]]:
    """The objectives of this library, by name."""
    return {name: find_objective(name) for name in OBJECTIVES}


def objective_of(options: LossOptions) -> Objective:
    """The objective of a run; without a weight any objective trains like the one without pairs.

    Raises:
        ConfigError: see `find_objective`.
    """
    return find_objective(options.objective if options.lbd else OBJECTIVES[0])(options)


def own_options(name: str) -> type | None:
    """The dataclass of options that the objective of this name brings into a run; None for built-in ones."""
    cls = find_objective(name)
    if is_built_in(cls) or not options_with_defaults(cls):
        return None
    return cls.Options


def options_with_defaults(cls: type[Objective]) -> dict[str, Option]:
    """An objective's own options by name.

    Raises:
        ConfigError: `Options` is not a dataclass, has a type that cannot be resolved, or cannot be made of its defaults.
    """
    if cls.Options is None:
        return {}
    if not (isinstance(cls.Options, type) and is_dataclass(cls.Options)):
        raise ConfigError(f"{cls.__qualname__}.Options is not a dataclass; decorate it with @dataclass")
    with explaining_options(cls, "cannot be read"):
        known = options_of(cls.Options)
    if not is_built_in(cls):
        with explaining_options(cls, "cannot be made of their defaults"):
            check_fields(cls.Options())
    return known


@contextmanager
def explaining_options(cls: type[Objective], what: str) -> Iterator[None]:
    """Within this context, whatever the code of an objective's `Options` raises is one line.

    Raises:
        ConfigError: see above.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"the options of {cls.__qualname__} {what} ({said(error)})") from error


def idle_options(objective: Objective) -> frozenset[str]:
    """The options of objectives that one of them does not read."""
    topics = {topic for other in built_in().values() for topic in (*other.reads, StepsOptions, other.Options) if topic}
    read = {name for topic in objective.topics() for name in options_of(topic)}
    return frozenset(name for topic in topics for name in options_of(topic)) - (read - objective.unread)


def trained_pairs(settings: Mapping[str, Any]) -> bool:
    """Whether a run with these recorded settings trained pairs. A file of one's own is not imported for that."""
    name = settings.get("objective")
    return bool(name and name != OBJECTIVES[0] and settings.get("lbd"))


def drafting_objective(settings: Mapping[str, Any]) -> Objective | None:
    """The objective of a run with these recorded settings, of its own options alone; None where it drafts nothing."""
    chosen = built_in().get(str(settings.get("objective")))
    if chosen is None or chosen.Options is None or not chosen.drafts:
        return None
    own = {name: settings[name] for name in options_of(chosen.Options) if name in settings}
    return chosen(chosen.Options(**own))


def _made(name: str, options: Any) -> Objective:
    return find_objective(name)(options)
