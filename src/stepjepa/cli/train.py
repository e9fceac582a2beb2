"""stepjepa train FILE

Train a causal language model with gamma * LM + lbd * JEPA, or with the LM loss alone.

example: stepjepa train data.jsonl --model_name mini --step_jepa --predictors 2 --output_dir run
"""

from __future__ import annotations

import gc
import logging

from stepjepa.api import train
from stepjepa.config.option import Names
from stepjepa.config.parser import StrictParser
from stepjepa.config.spellings import PUBLISHED, published
from stepjepa.training.options import COMMON, JEPAOptions, RunOptions, TrainerOptions, inherited_names
from stepjepa.utils.terminal import is_main_process, print_text, show_log

_FIRST, _LAST = "options run model method loss views".split(), "data lora output".split()
_GROUPS = (*_FIRST, "semantic tube", "looking ahead", *_LAST, COMMON)


def run(argv: list[str]) -> int:
    """Parse, train, print the result. Exit status 0."""
    if any(word in ("-h", "--help") for word in argv):  # without torch
        parser_of(RunOptions, JEPAOptions, TrainerOptions).values(argv)  # exits
    if "--help_all" not in argv:  # a slip in a name is answered before torch is loaded, which takes seconds
        parser_of(RunOptions, JEPAOptions, TrainerOptions).check_names(argv)
    from stepjepa.training.config import JEPAConfig

    parser = parser_of(RunOptions, JEPAConfig)
    if "--help_all" in argv:
        parser.headings = ()
        parser.values(["--help", *argv])
    options = parser.values(argv)
    from transformers.utils.logging import disable_progress_bar

    from stepjepa.training.run import leave_process_group

    if not gc.get_freeze_count():
        gc.freeze()  # the modules stay: no collection during training looks through them
    debug = options.get(Names(RunOptions).debug_level, 0)
    show_log(logging.DEBUG if debug >= 5 else logging.INFO if debug >= 1 else logging.WARNING)
    disable_progress_bar()  # of loading and writing; training has its own
    result = train(**options)
    if is_main_process():
        print_text(str(result))
    del result  # the wrapped model must go before the process group
    leave_process_group()
    return 0


def parser_of(*dataclass_types: type) -> StrictParser:
    """The parser of the command over these dataclasses."""
    return StrictParser(
        dataclass_types,
        __doc__,
        aliases=published(*dataclass_types),
        positional=(Names(RunOptions).train_file,),
        headings=_GROUPS,
        others=(*PUBLISHED, *inherited_names()),
    )
