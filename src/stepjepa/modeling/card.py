"""The model card: the README.md of every final model, written from the records of its run with the template ``card.md``.

A card has a marker line. A README.md without this line belongs to the user and is never changed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepjepa.data.report import DataReport, recorded_ending
from stepjepa.data.sources import FILE_SUFFIXES
from stepjepa.data.tokens import kept_predictors
from stepjepa.objectives.base import trained_pairs
from stepjepa.utils.files import read_object, write_whole
from stepjepa.utils.text import escaped
from stepjepa.version import __version__

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CARD = "README.md"
_MARKER = "<!-- Written by stepjepa with the model. Take this line out, and the file is yours and stays as it is. -->"
_TEMPLATE = Path(__file__).with_name("card.md")
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")
# Endings of the names in an evaluation's log entry that are not results.
NO_RESULT = ("_runtime", "_per_second", "_num_pairs")


class Records(NamedTuple):
    """The records of a training run: `run` and `data` as in ``run.json`` and ``data_report.json``, the Trainer's log, the
    step of the weights, and the model's name if it differs from its folder's."""

    run: Mapping[str, Any] = {}
    data: Mapping[str, Any] = {}
    history: Sequence[Mapping[str, Any]] = ()
    step: int = 0
    name: str = ""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The options of the run."""
        return self.run.get("settings", {})


def is_hub_id(name: str) -> bool:
    """Whether a name has the form of a Hub id and is not a local file or folder."""
    path = Path(os.path.expanduser(name))
    return (
        bool(_HUB_ID.fullmatch(name))
        and path.suffix.lower() not in FILE_SUFFIXES
        and not path.exists()
    )


def public_name(name: str) -> str:
    """A name without the folders of this machine: a complete Hub id, or the last part of a path."""
    return escaped(name if is_hub_id(name) else Path(name).name)


def base_model(name: str) -> dict[str, str]:
    """The entry for a base model in a card: its ``name`` and, if that is a Hub id, its ``id``; empty without a base."""
    if not name:
        return {}
    base = {"name": public_name(name)}
    if is_hub_id(name):
        base["id"] = name
    return base


def is_card(folder: Path) -> bool:
    """Whether the README.md of a folder is a card that this library wrote."""
    try:
        return _MARKER in (folder / CARD).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def write_card(
    folder: Path,
    name: str,
    records: Records,
    tokenizer: PreTrainedTokenizerBase,
    end: int | None = None,
) -> None:
    """Write the card of the model in a folder.

    Args:
        name: title of the card, unless the records have a name.
        tokenizer: that of the model, whose vocabulary may have predictor tokens.
        end: id of the token that ends an answer, if there is one.
    """
    from huggingface_hub import ModelCard, ModelCardData

    run, adapter = records.run, read_object(folder / "adapter_config.json")
    settings = records.settings
    base = run.get("base_model", {})
    name = escaped(records.name or name)
    # Only the class name of a user's objective, since its path is valid only on this machine.
    objective = escaped(str(settings.get("objective", "")).rpartition(":")[2])
    pairs = trained_pairs(settings)
    kwargs = settings.get("chat_template_kwargs") or {}
    data = {
        split: {**report, "source": public_name(report["source"])}
        for split, report in records.data.items()
    }
    # Only an evaluation of the exported weights counts as a result; the last training values may be from another step.
    evaluations = [
        entry for entry in records.history if "eval_loss" in entry and entry["step"] == records.step
    ]
    last = last_numbers(records.history)
    head = ModelCardData(
        library_name="peft" if adapter else "transformers",
        base_model=base.get("id"),
        datasets=run.get("datasets") or None,
        pipeline_tag="text-generation",
        tags=[tag for tag in ("stepjepa", "jepa" if pairs else "", objective) if tag],
    )
    card = ModelCard.from_template(
        head,
        str(_TEMPLATE),
        marker=_MARKER,
        md=_markdown,
        version=__version__,
        model_name=name,
        run=run,
        settings=settings,
        base=base,
        objective=objective,
        pairs=pairs,
        data={split: DataReport.from_dict(report).lines()[0] for split, report in data.items()},
        step=records.step,
        results=_results(evaluations[-1]) if evaluations else {},
        last=last,
        signs=logged_collapse(last)[0],
        adapter=adapter,
        kept=list(kept_predictors(tokenizer)),
        tokenizer=tokenizer,
        end_token="" if end is None else str(tokenizer.convert_ids_to_tokens(end)),
        dropped=recorded_ending(records.data),
        given="".join(f", {key}={value!r}" for key, value in kwargs.items() if key.isidentifier()),
    )
    write_whole(folder / CARD, [str(card).encode()])


def _results(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """The results in the log entry of an evaluation, by name."""
    return {
        name.removeprefix("eval_"): value
        for name, value in evaluation.items()
        if name.startswith("eval_") and not name.endswith(NO_RESULT) and _is_number(value)
    }


def last_numbers(history: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The last finite number under each key of a log."""
    return {key: value for entry in history for key, value in entry.items() if _is_number(value)}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _markdown(value: object) -> str:
    """Untrusted text for Markdown: on one line, with all markup escaped."""
    return re.sub(r"([\\`*_\[\]<>|&#~$])", r"\\\1", escaped(str(value)))


# The definition of collapse for the training log, the card, `stepjepa analyze` and the report. The states of plain language
# models form a cone: two unrelated views have a cosine of 0.76 to 0.96, and the effective rank is well above 1. Collapsed
# models reach a cosine of 0.995 and a rank of 1.0.

# Limit for the mean cosine of two rows: plain models are below it (0.96 at most, as measured), collapsed ones above (0.995).
CONE_COSINE = 0.98
CONE_WORDS = f"a sign of collapse from {CONE_COSINE} on; small plain models had 0.76 to 0.96"
# Limit for the effective rank of unit-length rows.
LOW_RANK = 2.0
# With fewer rows or dimensions, even healthy states have a low rank.
RANK_ROWS = 8


def effective_rank(singular_K: np.ndarray) -> float:
    """``exp(-sum_k p_k log p_k)``, ``p_k = s_k / sum(s) + 1e-7`` (RankMe, Garrido et al. 2023, arXiv:2210.02885, Eq. 1).

    `singular_K` has the singular values (K,). The rank is 1 for a single direction, K for equal values, 0 for zeros only.
    """
    total = singular_K.sum()
    if total == 0:
        return 0.0
    share_K = singular_K / total + 1e-7
    return float(np.exp(-(share_K * np.log(share_K)).sum()))


def logged_collapse(last: Mapping[str, float]) -> tuple[list[str], bool]:
    """The signs of collapse in the last values of a log, and whether one of them is a low rank, which is collapse by itself.

    The log covers only the targets of training batches. Their spread gives the mean cosine of two targets:
    ``target_std ** 2 = 1 - mean cosine`` for unit-length states.
    """
    rank = last.get("effective_rank", LOW_RANK)
    cosine = 1 - last.get("target_std", 1.0) ** 2
    low = rank < LOW_RANK and last.get("num_pairs", RANK_ROWS) >= RANK_ROWS
    texts = (
        [f"target states have an effective rank of {rank:.2f} (below {LOW_RANK})"] if low else []
    )
    if cosine >= CONE_COSINE:
        texts.append(
            f"target states point in one direction: two targets have a cosine of {cosine:.4f} on average, "
            f"computed from target_std {last['target_std']:.3f} ({CONE_WORDS})"
        )
    return texts, low


def collapse_words(collapse: bool, signs: bool) -> str:
    """The verdict on signs of collapse, in the words that `stepjepa analyze` and the report share."""
    if collapse:
        return "collapse"
    return "signs of collapse, which alone do not prove it" if signs else "no sign of collapse"
