"""Settings of the broker: UPDATE_BROKER_CONFIG (25), GET_BROKER_CONFIG (26).

Source: RocketMQ AdminBrokerProcessor.
"""

from collections.abc import Mapping

from pymq.broker.live_settings import LiveSettings
from pymq.broker.state_saving import AnswerSaved
from pymq.net.dispatcher import Answer, Handler, Request
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.administration import BrokerConfigResponse
from pymq.setting_changes import read_changes
from pymq.settings import format_properties


class SettingsHandlers:
    """Shows and changes settings."""

    def __init__(self, settings: LiveSettings, answer_saved: AnswerSaved) -> None:
        self._settings = settings
        self._answer_saved = answer_saved

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.update,
            RequestCode.GET_BROKER_CONFIG: self.show,
        }

    def show(self, request: Request) -> Command:
        """GET_BROKER_CONFIG (26): lines of ``key=value``."""
        text = format_properties(self._settings.properties())
        version = self._settings.version.encode().decode()
        fields = BrokerConfigResponse(version=version).to_fields()
        return request.response(ResponseCode.SUCCESS, fields=fields, body=text.encode())

    def update(self, request: Request) -> Answer:
        """UPDATE_BROKER_CONFIG (25); answered once it has effect and is on the disk."""
        changes = read_changes(request.body)
        if changes:
            self._settings.change(changes)
        return self._answer_saved(request)
