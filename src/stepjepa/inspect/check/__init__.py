"""`check`: what is in a data set, and what to beware of (``stepjepa check``)."""

from stepjepa.inspect.check.run import CheckOptions as CheckOptions
from stepjepa.inspect.check.run import CheckReport as CheckReport
from stepjepa.inspect.check.run import check as check
