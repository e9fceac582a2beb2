"""Raw rows to chat rows with steps: ``stepjepa prepare``."""

from stepjepa.data.prepare.options import PrepareOptions
from stepjepa.data.prepare.result import PrepareResult
from stepjepa.data.prepare.run import prepare

__all__ = ["PrepareOptions", "PrepareResult", "prepare"]
