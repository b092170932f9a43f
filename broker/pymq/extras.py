"""Packages that an installation without extras lacks, and what Windows lacks; what helps."""

import importlib
from types import ModuleType

#: Package -> our extra. Functions that need a package of their own report it themselves.
_EXTRAS = {
    "numpy": "broker",
    "typer": "cli",
    "click": "cli",
    "rich": "cli",
    "etcd3gw": "controller",
    "testcontainers": "containers",
    "opentelemetry": "otel",
    "faststream": "faststream",
    "kombu": "kombu",
}
#: Modules of Python that servers need, and Windows' does not have.
_POSIX = frozenset(("fcntl", "resource"))


class ExtraMissing(ModuleNotFoundError):
    """A package is not there; the message names it and what installs it, or where it is."""


def require(package: str, *, by: str) -> None:
    """Import a package that one of our extras installs, or a module that Windows lacks.

    Args:
        package: its name.
        by: who needs it, for the message.

    Raises:
        ExtraMissing: it is not installed, or cannot be.
        ModuleNotFoundError: it is, but something that it needs is not.
    """
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise named(error, by=by) from error


def imported(path: str) -> ModuleType:
    """Import the module that a public name is from.

    Raises:
        ImportError: it cannot be imported. Where it asks for what Python does not have here, that
            is an AttributeError, and ``from ... import`` would only say that there is no such name.
    """
    try:
        return importlib.import_module(path)
    except AttributeError as error:
        raise ImportError(f"{path}: {error}") from error


def named(error: ModuleNotFoundError, *, by: str) -> ModuleNotFoundError:
    """Return an error that also says what helps; the same one if we do not know.

    Args:
        error: a failed import.
        by: who needed it, for the message.
    """
    if error.name in _POSIX and not isinstance(error, ExtraMissing):
        return ExtraMissing(
            f"{by} needs Linux or macOS (on Windows: WSL, or a container): Python has no "
            f"{error.name} here",
            name=error.name,
        )
    extra = _EXTRAS.get(error.name or "")
    if extra is None or isinstance(error, ExtraMissing):
        return error
    return ExtraMissing(
        f"{by} needs {error.name}, which is not installed: pip install 'pymq-rocketmq[{extra}]'",
        name=error.name,
    )
