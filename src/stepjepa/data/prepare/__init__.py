"""Raw rows to chat rows with steps, for files of any size: ``stepjepa prepare``."""

from stepjepa.data.prepare.options import AnswerRules, PrepareOptions
from stepjepa.data.prepare.run import PrepareResult, prepare

__all__ = ["AnswerRules", "PrepareOptions", "PrepareResult", "prepare"]
