"""stepjepa analyze FILE --models RUN_A RUN_B

Where are source and target views? Hidden states of both views in one or more models, as training reads them; matched
against shuffled pairs, retrieval, ranks, linear map, by layer and step; signs of collapse. The options of training mean
what they mean for stepjepa train. docs/geometry.md explains the numbers. With --energy: how badly each step of given
solutions is predicted (stepjepa analyze --energy --help).

example: stepjepa analyze test.jsonl --models runs/regular runs/llm_jepa --objective llm_jepa; stepjepa analyze --runs
runs/regular runs/llm_jepa
"""

from __future__ import annotations

from stepjepa.analysis.options import AnalyzeOptions, EnergyOptions
from stepjepa.api import analyze
from stepjepa.config.option import Names
from stepjepa.config.parser import StrictParser
from stepjepa.config.spellings import published
from stepjepa.utils.terminal import print_json, print_text

_NAME, _ENERGY_NAME = Names(AnalyzeOptions), Names(EnergyOptions)
_ENERGY = f"--{_NAME.energy}"
WAS = {"score": f"analyze {_ENERGY}"}  # a command of its own once


def run(argv: list[str]) -> int:
    """Analyze; exit status 0, also where there is collapse."""
    energy = _ENERGY in argv
    plain = StrictParser((AnalyzeOptions,), __doc__, aliases=published(AnalyzeOptions), positional=("file",))
    values = (_energy_parser() if energy else plain).values([word for word in argv if word != _ENERGY])
    result = analyze(**{_NAME.energy: energy} | values)
    if energy and values.get("json"):
        print_json(result.record)
    else:
        print_text(str(result))
    return 0


def _energy_parser() -> StrictParser:
    """stepjepa analyze --energy SOLUTIONS --model_name RUN

    The JEPA energy of each step of given solutions: how badly the prediction at step i fits step i + 1, next to the same for
    steps of other questions; a JSON line for each solution. With --best_of N, choose one of N solutions by energy, by
    likelihood and by majority, and report the accuracy of each. docs/score.md says what came of that.

    example: stepjepa analyze --energy solutions.jsonl --model_name runs/a --output_file energies.jsonl; stepjepa analyze
    --energy --questions test.jsonl --model_name runs/a --best_of 8 --metric gsm8k
    """
    aliases = {**published(EnergyOptions), "model_path": _ENERGY_NAME.model_name}
    return StrictParser((EnergyOptions,), _energy_parser.__doc__, aliases=aliases, positional=("solutions",))
