"""Packages that an installation without extras lacks, and the extra that installs each."""

import importlib

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


class ExtraMissing(ModuleNotFoundError):
    """A package is not installed; the message names it and the command that installs it."""


def require(package: str, *, by: str) -> None:
    """Import a package that one of our extras installs.

    Args:
        package: its name.
        by: who needs it, for the message.

    Raises:
        ExtraMissing: it is not installed.
        ModuleNotFoundError: it is, but something that it needs is not.
    """
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise named(error, by=by) from error


def named(error: ModuleNotFoundError, *, by: str) -> ModuleNotFoundError:
    """Return an error that also says what to install; the same one if no extra of ours helps.

    Args:
        error: a failed import.
        by: who needed it, for the message.
    """
    extra = _EXTRAS.get(error.name or "")
    if extra is None or isinstance(error, ExtraMissing):
        return error
    return ExtraMissing(
        f"{by} needs {error.name}, which is not installed: pip install 'pymq-rocketmq[{extra}]'",
        name=error.name,
    )
