"""The `stepjepa` command."""
