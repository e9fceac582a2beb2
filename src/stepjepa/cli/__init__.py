"""The `stepjepa` command: one module a sub-command, imported only when it is called."""
