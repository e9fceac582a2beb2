"""Raw rows to chat rows with steps: ``stepjepa prepare``."""

from stepjepa.data.prepare.options import PrepareOptions
from stepjepa.data.prepare.run import PrepareResult, prepare

__all__ = ["PrepareOptions", "PrepareResult", "prepare"]
