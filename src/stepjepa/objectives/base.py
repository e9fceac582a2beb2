"""What an objective is, and where objectives are found.

An `Objective` says which states of a chat are compared (`pairs_of`), what is drawn anew every epoch (`draw`), which modules
it trains (`modules`) and what the loss is (`loss`). Everything else (layout, packing, masks, counts, the log) follows from
the `Example`s that it makes. It is made of the run's options and holds no state.

Shapes: P pairs, D width.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from stepjepa.data.types import (
    ISOLATED,
    TRUNK,
    Batch,
    Example,
    ForestOutput,
    LossPart,
    LossParts,
    Pair,
    PairsFound,
    Read,
    Segment,
    Turn,
)
from stepjepa.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from stepjepa.data.encode import TokenChat


class ModelView(Protocol):
    """The model as a loss may use it, inside the wrapped model's forward.

    Attributes:
        modules: those of the objective (`Objective.modules`), None where it has none.
    """

    modules: nn.Module | None

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Input embeddings of token ids of any shape; one more dimension, D."""

    def logits(self, states_ND: torch.Tensor, detach: bool = False) -> torch.Tensor:
        """(N, V) logits for last hidden states (N, D); with `detach` the weights of the output head get no gradient."""

    def gather(self, rows_PD: torch.Tensor) -> tuple[torch.Tensor, int]:
        """The rows (P, D) of all processes, with gradient, and where this one's begin (`losses.gather`)."""


class Objective:
    """An objective whose pairs are compared by `--jepa_loss`. Subclasses say at least what pairs a chat has.

    Attributes:
        name: what ``--objective`` calls it.
        needs_steps: whether the steps of the answers are found for it.
        takes_text: whether it also trains on plain text (`pairs_of_text`).
        forwards: those that can compute it; ``inline`` asks for one branch and one copy of the trunk's tokens.
        defaults: of options that it does not leave as they are, by name.
        stream: number of its random numbers, which no other draw of an example uses.
        options: of the run.
    """

    name: ClassVar[str] = ""
    needs_steps: ClassVar[bool] = False
    takes_text: ClassVar[bool] = False
    forwards: ClassVar[tuple[str, ...]] = ("packed", "two_pass")
    defaults: ClassVar[Mapping[str, Any]] = {}
    stream: ClassVar[int] = 6

    def __init__(self, options: Any):
        self.options = options

    def __repr__(self) -> str:
        """Equal for objectives that make the same examples of the same chats."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.pairing.items())})"

    @property
    def pairing(self) -> Mapping[str, Any]:
        """What decides which pairs a chat has, by name: part of the key under which examples are cached."""
        return {"predictors": self.predictors, "last_token": self.options.last_token}

    @property
    def makes_pairs(self) -> bool:
        """Whether there is anything to compare."""
        return True

    @property
    def predictors(self) -> int:
        """K, predictor tokens of one group."""
        return self.options.predictors or 0

    @property
    def groups(self) -> int:
        """Groups of K predictor tokens."""
        return 1

    @property
    def one_pair(self) -> bool:
        """Whether an example keeps its first pair only (`inline`, where a second would see the first one's predictors)."""
        return self.options.forward == "inline"

    @property
    def layer(self) -> int | None:
        """Behind which layer states are read (0: the embeddings); None for those behind the final norm."""
        return None

    @property
    def separate_targets(self) -> bool:
        """Whether the targets go through a forward pass of their own, without a graph."""
        return not self.options.target_grad

    # From chats to examples

    def pairs_of(self, chat: TokenChat) -> PairsFound:
        """The pairs of a tokenised chat."""
        raise NotImplementedError

    def pairs_of_text(self, trunk: np.ndarray) -> PairsFound:
        """The pairs of a piece of plain text of (T,) tokens; only with `takes_text`."""
        raise NotImplementedError

    @property
    def draws(self) -> bool:
        """Whether `draw` does anything."""
        return False

    def draw(self, example: Example, rng: np.random.Generator) -> Example:
        """The example as it is trained on in one epoch.

        Args:
            rng: seeded by the run's seed, the epoch and the row; the only source of randomness.
        """
        return example

    # From states to the loss

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts of its loss, as the log has them."""
        return ("jepa_loss",) if self.options.regularizer == "none" else ("jepa_loss", "regularizer")

    def counts(self, batch: Batch) -> dict[str, float]:
        """What the parts of the loss are divided by, by name, known before the forward."""
        return dict.fromkeys(self.part_names, float(batch.weight))

    def modules(self, width: int, vocabulary: int) -> nn.Module | None:
        """What it trains beside the model, for states of `width` and a softmax over `vocabulary`; None for nothing.

        It becomes part of the model, and is saved and loaded with the predictor tokens. The global random generators are put
        back after this call.
        """
        return None

    def module_flops(self, width: int, vocabulary: int) -> float:
        """FLOPs of its modules, forward and backward, a pair."""
        return 0.0

    def target_states(self, output: ForestOutput) -> torch.Tensor:
        """The target states (P, D) that the loss compares with: without their graph, or replaced by a control."""
        target = output.target_states
        if self.options.control == "random":
            return random_target(target.shape[1], self.options.seed, target.device).expand_as(target)
        return target if self.options.target_grad else target.detach()

    def loss(self, output: ForestOutput, batch: Batch, view: ModelView, step: int) -> LossParts:
        """The parts of the loss on one micro-batch; called inside the wrapped model's forward.

        Args:
            output: its target states are those of `target_states`.
            view: the model, as far as a loss may use it.
            step: optimizer step, from 0.
        """
        losses = self.distances(output.source_states, output.target_states)
        weight = batch.weight
        jepa = losses.sum() if batch.weights is None else (losses * batch.weights).sum()
        parts = {"jepa_loss": LossPart(jepa, weight)}
        if self.options.regularizer != "none":
            # Times the weight of all pairs, so that dividing by it gives the regularizer back.
            value = self._regularizer(output.source_states, output.target_states, step)
            parts["regularizer"] = LossPart(value * weight, weight)
        return parts

    def distances(self, source_PD: torch.Tensor, target_PD: torch.Tensor) -> torch.Tensor:
        """The loss of every pair, (P,) float32, by ``--jepa_loss``."""
        from stepjepa.losses.distances import DISTANCES
        from stepjepa.losses.infonce import infonce_loss

        options = self.options
        if options.jepa_loss == "infonce":
            return infonce_loss(source_PD, target_PD, options.infonce_temperature, options.infonce_symmetric)
        return DISTANCES[options.jepa_loss](source_PD, target_PD)

    def _regularizer(self, source_PD: torch.Tensor, target_PD: torch.Tensor, step: int) -> torch.Tensor:
        """The weighted regularizer of one micro-batch over all processes, () float32; `step` draws SIGReg's directions."""
        from stepjepa.losses.sigreg import random_directions, sigreg_regularizer
        from stepjepa.losses.vicreg import vicreg_regularizer

        options = self.options
        if options.regularizer == "vicreg":
            value = vicreg_regularizer(source_PD, target_PD, 1.0, options.vicreg_covariance)
        else:
            directions = random_directions(source_PD.shape[1], options.sigreg_directions, step, source_PD.device)
            value = sigreg_regularizer(source_PD, target_PD, directions)
        return (options.regularizer_weight or 0.0) * value


def random_target(width: int, seed: int, device: torch.device) -> torch.Tensor:
    """The fixed vector of ``control=random``, (D,) float32, standard normal."""
    import torch

    return torch.randn(width, generator=torch.Generator().manual_seed(seed)).to(device)


class PairBuilder:
    """Collects the pairs of one chat. Sources with the same end share a branch, targets with the same tokens a copy.

    Args:
        ids: tokens of the chat, cut or not.
        predictors: K; with 0 a source is read on the trunk.
    """

    def __init__(self, ids: np.ndarray, predictors: int):
        self.ids, self.predictors = ids, predictors
        self.pairs: list[Pair] = []
        self._segments: list[Segment] = []
        self._branches: dict[tuple[int, int], int] = {}
        self._copies: dict[tuple[int, int], int] = {}

    def branch(self, end: int, readout: int, group: int = 0) -> Read:
        """The last of K predictor tokens behind token `end`; with none, the token `readout`."""
        if not self.predictors:
            return Read.one(TRUNK, readout)
        number = self._branches.get((end, group))
        if number is None:
            nothing = np.zeros(0, np.int32)
            number = self._branches[end, group] = self.add(Segment(nothing, end, end + 1, group, self.predictors))
        return Read.one(number, self.predictors - 1)

    def copy(self, start: int, stop: int, readout: int) -> Read:
        """Token `readout` in an isolated copy of the trunk's tokens [start, stop), at the positions where these would be
        behind the predictors."""
        number = self._copies.get((start, stop))
        if number is None:
            ids = self.ids[start:stop]
            number = self._copies[start, stop] = self.add(Segment(ids, ISOLATED, start + self.predictors, origin=start))
        return Read.one(number, readout - start)

    def add(self, segment: Segment) -> int:
        """Add a segment; its number."""
        self._segments.append(segment)
        return len(self._segments)

    def found(self, reason: str) -> PairsFound:
        """What was collected, or the reason why there is nothing."""
        return PairsFound(tuple(self._segments), tuple(self.pairs), reason=None if self.pairs else reason)


def question_and_answer(turns: Sequence[Turn]) -> tuple[list[Turn], str]:
    """The turns that have a question and an answer with tokens, and the reason why there may be none."""
    found, reason = [], "no_user_message"
    for turn in turns:
        if turn.user is None:
            continue
        if turn.user.start == turn.user.stop or turn.answer.start == turn.answer.stop:
            reason = "empty_view"
            continue
        found.append(turn)
    return found, reason


# Where objectives are found

_MODULES = {
    "regular": "stepjepa.objectives.regular:Regular",
    "llm_jepa": "stepjepa.objectives.llm_jepa:LLMJEPA",
    "step_jepa": "stepjepa.objectives.step_jepa:StepJEPA",
    "split": "stepjepa.objectives.split:Split",
    "semantic_tube": "stepjepa.objectives.semantic_tube:SemanticTube",
}
OBJECTIVES = tuple(_MODULES)


def find_objective(name: str) -> type[Objective]:
    """The class of an objective: a built-in one, ``file.py:Class`` or ``package.module:Class``, which is imported.

    Raises:
        ConfigError: there is none of that name, or it is no objective.
    """
    found = load_named(_MODULES.get(name, name), "objective", OBJECTIVES)
    if not (isinstance(found, type) and issubclass(found, Objective)):
        raise ConfigError(f"objective {name}: is no class made from stepjepa.objectives.Objective")
    return found


def load_named(name: str, option: str, known: Sequence[str]) -> Any:
    """What ``file.py:Name`` or ``package.module:Name`` names. Loading it runs that file.

    Args:
        option: that the name was given with; `known`: what else it takes, for the message.

    Raises:
        ConfigError: it is neither, or cannot be loaded.
    """
    source, colon, attribute = name.rpartition(":")
    if not colon:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{option} is {name!r}; known: {', '.join(known)}, or file.py:Name of your own{hint}")
    try:
        module = _file_module(Path(source)) if source.endswith(".py") else importlib.import_module(source)
        return getattr(module, attribute)
    except ConfigError:
        raise
    except AttributeError:
        raise ConfigError(f"{option} {name}: {source} has no {attribute}") from None
    except Exception as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"{option} {name}: {source} cannot be loaded ({why})") from error


def _file_module(path: Path) -> Any:
    """The module of a Python file, loaded once."""
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    # By its path: files of one name in several folders are several modules, and workers find it again.
    name = f"stepjepa_user_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def objective_of(options: Any) -> Objective:
    """The objective of a run; without a weight any objective trains like the one without pairs.

    Raises:
        ConfigError: see `find_objective`.
    """
    chosen = find_objective(options.objective)
    if not options.lbd:
        chosen = find_objective(OBJECTIVES[0])
    return chosen(options)
