"""stepjepa evaluate RUN TEST_FILE

Let a model answer the questions of a file, and score the answers. Interrupted, the same command resumes. With
--analyze, look into the predictions of one evaluation, or compare those of two.

example: stepjepa evaluate runs/a test.jsonl --metric gsm8k; then stepjepa evaluate --analyze
runs/a/evaluation-test/predictions.jsonl
"""

from __future__ import annotations

from stepjepa.api import compare, evaluate
from stepjepa.config.option import Names
from stepjepa.config.parser import StrictParser, build
from stepjepa.config.spellings import published
from stepjepa.evaluation.options import EvaluateOptions
from stepjepa.utils.terminal import ending, print_json, print_text

_NAME = Names(EvaluateOptions)


def run(argv: list[str]) -> int:
    """Evaluate or analyse. Exit status 0; 130 or 143 where a signal ends it."""
    aliases = {**published(EvaluateOptions), "model_path": _NAME.model_name}  # of the published evaluate_step_jepa
    positional = (_NAME.model_name, _NAME.test_file)
    values = StrictParser((EvaluateOptions,), __doc__, aliases=aliases, positional=positional).values(argv)
    if _NAME.analyze in values:
        return _analyze(*build((EvaluateOptions,), values))
    with ending("evaluate", lambda: "what is done is kept"):
        result = evaluate(**values)
    if values.get("json"):
        print_json(result.record)
    else:
        print_text(str(result))
    return 0


def _analyze(options: EvaluateOptions) -> int:
    options.check()
    done = compare(*(options.analyze or ()), show=options.show, metric=options.metric[0] if options.metric else None)
    if options.json:
        print_json(done.record())
    else:
        print_text("\n".join([*options.notes(), str(done)]))
    return 0
