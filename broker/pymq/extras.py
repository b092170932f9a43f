"""Packages that an installation without extras lacks, and the extra that brings each."""

import importlib

#: Package -> our extra. What only one function can do without says so itself.
_EXTRAS = {"numpy": "broker", "typer": "cli", "click": "cli", "rich": "cli"}


class ExtraMissing(ModuleNotFoundError):
    """A package is not installed; the text names it and the command that brings it."""


def require(package: str, *, by: str) -> None:
    """Import a package that one of our extras brings.

    Args:
        package: its name.
        by: who needs it, for the text.

    Raises:
        ExtraMissing: it is not installed.
        ModuleNotFoundError: it is, but lacks something itself.
    """
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise named(error, by=by) from error


def named(error: ModuleNotFoundError, *, by: str) -> ModuleNotFoundError:
    """Return the error that also says what to install; the same one if nothing of ours brings it.

    Args:
        error: a failed import.
        by: who needed it, for the text.
    """
    extra = _EXTRAS.get(error.name or "")
    if extra is None or isinstance(error, ExtraMissing):
        return error
    return ExtraMissing(
        f"{by} needs {error.name}, which is not installed: pip install 'pymq-rocketmq[{extra}]'",
        name=error.name,
    )
