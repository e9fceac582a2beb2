"""``stepjepa analyze``: the geometry of both views in one or more models; with ``--energy`` the energies of solutions."""

from __future__ import annotations

from stepjepa.analysis.options import AnalyzeOptions, EnergyOptions
from stepjepa.api import analyze
from stepjepa.config.parser import StrictParser
from stepjepa.config.spellings import published
from stepjepa.utils.terminal import print_json, print_text

_ENERGY = "--energy"


def run(argv: list[str]) -> int:
    """Analyze; exit status 0, also where there is collapse."""
    energy = _ENERGY in argv
    values = (_energy_parser() if energy else _parser()).values([word for word in argv if word != _ENERGY])
    result = analyze(energy=energy, **values)
    if energy and values.get("json"):
        print_json(result.record)
    else:
        print_text(str(result))
    return 0


def _parser() -> StrictParser:
    return StrictParser(
        (AnalyzeOptions,),
        aliases=published(AnalyzeOptions),
        positional=("file",),
        prog="stepjepa analyze FILE --models RUN_A RUN_B",
        description="Where are source and target views? Hidden states of both views in one or more models, as training "
        "reads them; matched against shuffled pairs, retrieval, ranks, linear map, by layer and step; signs of collapse. "
        "The options of training mean what they mean for stepjepa train. docs/geometry.md explains the numbers. With "
        "--energy: how badly each step of given solutions is predicted (stepjepa analyze --energy --help).",
        epilog="example: stepjepa analyze test.jsonl --models runs/regular runs/llm_jepa --objective llm_jepa; "
        "stepjepa analyze --runs runs/regular runs/llm_jepa",
    )


def _energy_parser() -> StrictParser:
    return StrictParser(
        (EnergyOptions,),
        aliases=published(EnergyOptions, but={"model_path": "model_name"}),
        positional=("solutions",),
        prog="stepjepa analyze --energy SOLUTIONS --model_name RUN",
        description="The JEPA energy of each step of given solutions: how badly the prediction at step i fits step i + 1, "
        "next to the same for steps of other questions; a JSON line for each solution. With --best_of N, choose one of N "
        "solutions by energy, by likelihood and by majority, and report the accuracy of each. docs/score.md says what came "
        "of that.",
        epilog="example: stepjepa analyze --energy solutions.jsonl --model_name runs/a --output_file energies.jsonl; "
        "stepjepa analyze --energy --questions test.jsonl --model_name runs/a --best_of 8 --metric gsm8k",
    )
