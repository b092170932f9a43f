"""pyarrow, for modules that need it: an installation without extras lacks it."""

from pymq.errors import ConfigurationError

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ModuleNotFoundError as error:
    raise ConfigurationError(
        f"Arrow tables need {error.name}, which is not installed: pip install "
        "'pymq-rocketmq[columns]'"
    ) from error

__all__ = ["pa", "pc"]
