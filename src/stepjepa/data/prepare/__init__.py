"""Raw rows to chat rows with steps, for files of any size: ``stepjepa prepare``."""

from stepjepa.data.prepare.options import AnswerRules, PrepareOptions
from stepjepa.data.prepare.result import PrepareResult
from stepjepa.data.prepare.run import prepare

__all__ = ["AnswerRules", "PrepareOptions", "PrepareResult", "prepare"]
