"""Profiles: clusters by name, in a small file, so that nobody types addresses.

::

    # ~/.config/pymq/config.toml, or the file that PYMQ_CONFIG names
    default = "local"

    [profiles.local]
    name_server = "127.0.0.1:9876"

    [profiles.production]
    name_server = "mq-1:9876;mq-2:9876"
    timeout_s = 10
    broker_address_map = { "10.0.0.3:10911" = "127.0.0.1:10911" }

In descending order of precedence: the options of the command, ``--profile`` or ``PYMQ_PROFILE``,
``NAMESRV_ADDR`` of the environment, the default profile, and 127.0.0.1:9876.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pymq.cli.home import required
from pymq.errors import ConfigurationError

DEFAULT_NAME_SERVER = "127.0.0.1:9876"
_TYPES: dict[str, type | tuple[type, ...]] = {
    "name_server": str,
    "timeout_s": (int, float),
    "broker_address_map": dict,
    "namespace": str,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a profile says; ``None``: nothing."""

    name_server: str | None = None
    timeout_s: float | None = None
    broker_address_map: Mapping[str, str] = field(default_factory=dict)
    namespace: str | None = None


def chosen(name: str | None, environment: Mapping[str, str], home: Path | None) -> Profile:
    """Return the profile that counts, with ``NAMESRV_ADDR`` in its place.

    Args:
        name: the profile that the command names.
        environment: of the process.
        home: of the user; ``None``: he has none.

    Raises:
        ConfigurationError: there is no such profile, or the file cannot be read.
    """
    named = name or environment.get("PYMQ_PROFILE")
    given = environment.get("PYMQ_CONFIG")
    base = environment.get("XDG_CONFIG_HOME")
    servers = environment.get("NAMESRV_ADDR", "").strip()
    unnamed = Profile(name_server=servers or DEFAULT_NAME_SERVER)
    if not (given or base or home or named):
        return unnamed
    if given:
        file = Path(given)
    else:
        folder = Path(base) if base else required(home, "PYMQ_CONFIG to a file") / ".config"
        file = folder / "pymq" / "config.toml"
    if not given and not _is_there(file):
        if named:
            raise ConfigurationError(f"profile {named!r}: there is no {file}; create it")
        return unnamed
    table = _read(file)
    if not named and servers:
        return unnamed
    wanted = named or table.get("default")
    if wanted is None:
        return unnamed
    if not isinstance(wanted, str):
        raise ConfigurationError(f"{file}: default is {wanted!r}, expected the name of a profile")
    profiles = table.get("profiles", {})
    if not isinstance(profiles, dict) or wanted not in profiles:
        known = ", ".join(sorted(profiles)) if isinstance(profiles, dict) else ""
        raise ConfigurationError(f"{file} has no profile {wanted!r}, only: {known or 'none'}")
    return _profile(file, wanted, profiles[wanted])


def _is_there(file: Path) -> bool:
    try:
        return file.exists()
    except OSError as error:  # HOME may be another user's, as with sudo
        raise ConfigurationError(
            f"{file}: {error.strerror or error}: whether there are profiles is not known; set HOME "
            "to a directory of this user, or PYMQ_CONFIG to a file"
        ) from error


def _read(file: Path) -> dict[str, Any]:
    import tomllib  # only for those who have a file

    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} is not TOML: {error}") from error


def _profile(file: Path, name: str, table: object) -> Profile:
    if not isinstance(table, dict):
        raise ConfigurationError(f"{file}: profile {name!r} is not a table")
    for key, value in table.items():
        if key not in _TYPES:
            known = ", ".join(_TYPES)
            raise ConfigurationError(f"{file}: profile {name!r} has {key!r}, expected {known}")
        if not isinstance(value, _TYPES[key]):
            raise ConfigurationError(f"{file}: {key} of profile {name!r} is {value!r}")
    return Profile(**{"name_server": DEFAULT_NAME_SERVER, **table})
