"""The user's directory, for those who need it: in a container there may be none."""

from pathlib import Path

from pymq.errors import ConfigurationError


def home_directory() -> Path | None:
    """Return it; ``None``: HOME is not set, and the system does not know the user."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def required(home: Path | None, instead: str) -> Path:
    """Return the user's directory.

    Args:
        home: see ``home_directory``.
        instead: what else the user may do than to set HOME.

    Raises:
        ConfigurationError: there is none.
    """
    if home is None:
        raise ConfigurationError(
            f"this user has no home directory: set HOME to a directory, or {instead}"
        )
    return home
