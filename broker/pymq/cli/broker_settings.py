"""The settings that a broker says it has."""

from pymq.client.threaded.admin import Admin


def broker_settings(admin: Admin, broker: str) -> dict[str, str]:
    """Return the settings of a broker, under RocketMQ's keys.

    Args:
        admin: of the cluster.
        broker: its name.

    Raises:
        ConfigurationError: no master of that name is registered.
        PymqError: it could not be asked, or refused.
    """
    return dict(
        line.strip().split("=", 1)
        for line in admin.brokers.config(broker).splitlines()
        if "=" in line and not line.startswith("#")
    )
