"""`python -m stepjepa train ...` and `accelerate launch -m stepjepa train ...`."""

from __future__ import annotations

import sys

from stepjepa.cli.main import command

if __name__ == "__main__":
    sys.exit(command())
