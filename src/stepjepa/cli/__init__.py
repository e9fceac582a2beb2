"""The `stepjepa` command: one module a sub-command, imported only when it is called."""

from stepjepa.errors import ConfigError


def needed_file(name: str | None, command: str) -> str:
    """The file's name.

    Raises:
        ConfigError: none was given.
    """
    if not name:
        raise ConfigError(f"no data file given; write: stepjepa {command} FILE")
    return name
