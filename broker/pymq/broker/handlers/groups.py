"""Administration of consumer groups: 200, 201, 207, 225, 352, 353."""

from collections.abc import Mapping
from dataclasses import replace

from pymq.broker.attributes import GROUP_ATTRIBUTES, changed
from pymq.broker.deletions import Deletions
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.topics import QUEUE_COUNT_MAX
from pymq.broker.state_saving import AnswerSaved
from pymq.errors import LocalProtocolError, refusal
from pymq.net.dispatcher import Answer, Handler, Request
from pymq.protocol import fastjson, names
from pymq.protocol.admin_bodies import GroupConfigs, GroupForbidden
from pymq.protocol.bodies import DataVersion, GroupConfig
from pymq.protocol.bodies import (
    GroupTable as GroupTableBody,
)
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.groups import (
    DeleteGroupRequest,
    GroupForbiddenRequest,
    GroupPageRequest,
    GroupPageResponse,
    GroupRequest,
)
from pymq.protocol.headers.topics import PAGE_COUNT_MAX

#: Levels of nesting that a table adds around one group's settings, at most.
_TABLE_LEVELS = 10


class GroupHandlers:
    """Creates, shows and deletes groups."""

    def __init__(
        self,
        groups: GroupTable,
        offsets: OffsetTable,
        deletions: Deletions,
        answer_saved: AnswerSaved,
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._deletions = deletions
        self._answer_saved = answer_saved

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.update_list,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.page,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.show,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.forbid,
        }

    def update(self, request: Request) -> Answer:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200); answered once it is on the disk."""
        self._put([GroupConfig.decode(request.body)])
        return self._answer_saved(request)

    def update_list(self, request: Request) -> Answer:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225): all or, when one is refused, none."""
        self._put(GroupConfigs.decode(request.body).configs)
        return self._answer_saved(request)

    def _put(self, configs: list[GroupConfig]) -> None:
        """Take over settings; their attributes are changes, with a sign at each key."""
        known, made = self._groups.body().groups, []
        for config in configs:
            try:
                names.check_group(config.group)
            except LocalProtocolError as error:
                raise refusal(ResponseCode.INVALID_PARAMETER, str(error)) from error
            _check_numbers(config)
            before = known.get(config.group)
            attributes = changed(
                None if before is None else before.attributes, config.attributes, GROUP_ATTRIBUTES
            )
            made.append(replace(config, attributes=attributes))
        for config in made:
            # What cannot be encoded, or read again in a table, and no table could be saved or read.
            fastjson.parse(config.encode(), depth_max=fastjson.DEPTH_MAX - _TABLE_LEVELS)
        for config in made:
            self._groups.put(config)

    def delete(self, request: Request) -> Answer:
        """DELETE_SUBSCRIPTIONGROUP (207)."""
        header = DeleteGroupRequest.from_fields(request.fields)
        self._groups.delete(header.group)
        self._deletions.group(header.group)
        if header.forget_offsets:
            self._offsets.delete_group(header.group)
        return self._answer_saved(request)

    def page(self, request: Request) -> Command:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): all groups, or a page in name order."""
        header = GroupPageRequest.from_fields(request.fields)
        body = self._groups.body()
        if header.first is None and header.count_max is None:
            return request.response(ResponseCode.SUCCESS, body=body.encode())
        first = header.first or 0
        if not header.data_version or DataVersion.decode(header.data_version) != body.version:
            first = 0
        count = min(header.count_max or PAGE_COUNT_MAX, PAGE_COUNT_MAX)
        chosen = sorted(body.groups)[first : first + count]
        page = GroupTableBody(
            version=body.version,
            groups={name: body.groups[name] for name in chosen},
            forbidden={name: body.forbidden[name] for name in chosen if name in body.forbidden},
        )
        fields = GroupPageResponse(total_count=len(body.groups)).to_fields()
        return request.response(ResponseCode.SUCCESS, fields=fields, body=page.encode())

    def show(self, request: Request) -> Command:
        """GET_SUBSCRIPTIONGROUP_CONFIG (352)."""
        group = GroupRequest.from_fields(request.fields).group
        config = self._groups.body().groups.get(group)
        if config is None:
            raise refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker: {group}"
            )
        return request.response(ResponseCode.SUCCESS, body=config.encode())

    async def forbid(self, request: Request) -> Command:
        """UPDATE_AND_GET_GROUP_FORBIDDEN (353): may a group read a topic? Or just tell."""
        header = GroupForbiddenRequest.from_fields(request.fields)
        group, topic = header.group, header.topic
        if header.readable is not None:
            self._groups.forbid_reading(group, topic, is_forbidden=not header.readable)
            await self._answer_saved(request)
        body = GroupForbidden(
            group=group, topic=topic, readable=not self._groups.is_read_forbidden(group, topic)
        )
        return request.response(ResponseCode.SUCCESS, "", body=body.encode())


def _check_numbers(config: GroupConfig) -> None:
    # No lower limit: with none, or fewer, what is sent back is dropped.
    if config.retry_queue_count > QUEUE_COUNT_MAX:
        raise refusal(
            ResponseCode.INVALID_PARAMETER,
            f"retryQueueNums is {config.retry_queue_count}, expected at most {QUEUE_COUNT_MAX}",
        )
