"""What a broker of a group makes of what the controllers say."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import FakeClock

from pymq.broker.config import BrokerConfig
from pymq.broker.ha.heartbeat import Position
from pymq.broker.ha.identity import Identity, IdentityFiles
from pymq.broker.ha.membership import BEGUN_POLL_S, Membership
from pymq.broker.ha.set_change import SetRefused
from pymq.broker.ha.term import Term
from pymq.broker.replication_config import ReplicationConfig
from pymq.errors import BrokerError, PymqError
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.controller import (
    ElectedMaster,
    ElectMasterResponse,
    RegisterReplicaResponse,
    ReplicaInfoResponse,
    RoleChangedRequest,
    SyncStateSet,
)

SET = SyncStateSet(frozenset({1}), 7)


class PlayedControllers:
    """Controllers that say what the test puts into ``answers``, by request code."""

    def __init__(self) -> None:
        self.answers: dict[int, Command] = {}
        self.asked: list[tuple[int, Any]] = []
        self.told: list[Any] = []

    def tell(self, code: int, header: Any) -> None:
        assert code == RequestCode.BROKER_HEARTBEAT
        self.told.append(header)

    @property
    def beats(self) -> int:
        return len(self.told)

    async def request(self, code: int, header: Any, body: bytes = b"") -> Command:
        self.asked.append((code, header))
        return self.answers[code]

    def refuses(self, code: int) -> None:
        remark = "brokerId 1 of b is in use at h:9, so h:1 cannot have it"
        invalid = ResponseCode.CONTROLLER_BROKER_ID_INVALID
        self.answers[code] = Command(invalid, {}, remark=remark)

    def registers(self, master: int | None, epoch: int | None) -> None:
        header = RegisterReplicaResponse(
            master_broker_id=master,
            master_address=master and f"h:{master}",
            master_epoch=epoch,
            sync_state_set_epoch=7,
        )
        answer = Command(ResponseCode.SUCCESS, header.to_fields(), SET.encode())
        self.answers[RequestCode.CONTROLLER_REGISTER_BROKER] = answer

    def elects(self, master: int, epoch: int) -> None:
        header = ElectMasterResponse(
            master_broker_id=master,
            master_address=f"h:{master}",
            master_epoch=epoch,
            sync_state_set_epoch=8,
        )
        body = ElectedMaster(sync_state_set=frozenset({master})).encode()
        self.answers[RequestCode.CONTROLLER_ELECT_MASTER] = Command(0, header.to_fields(), body)

    def looks(self, master: int, epoch: int) -> None:
        header = ReplicaInfoResponse(
            master_broker_id=master, master_address=f"h:{master}", master_epoch=epoch
        )
        answer = Command(0, header.to_fields(), SET.encode())
        self.answers[RequestCode.CONTROLLER_GET_REPLICA_INFO] = answer


class Bed:
    """Broker 1, whose log has some epoch when it starts."""

    def __init__(self, root: Path, last_epoch: int, *, is_learner: bool = False) -> None:
        files = IdentityFiles(root, cluster="DefaultCluster", name="b")
        files.save(Identity("DefaultCluster", "b", 1))
        self.last_epoch = last_epoch
        self.terms: list[Term] = []
        #: How often it was left without a role.
        self.left = 0
        self.members: list[tuple[int, SyncStateSet]] = []
        self.controllers = PlayedControllers()
        self.membership = Membership(
            BrokerConfig(name="b"),
            ReplicationConfig(
                controller_mode=True, controllers=("127.0.0.1:1",), is_learner=is_learner
            ),
            FakeClock(),
            files,
            address="h:1",
            log=self,
            on_term=self._take,
            on_members=lambda term, members: self.members.append((term, members)),
        )
        played: Any = self.controllers
        self.membership._controllers = played
        self.membership._begun = last_epoch
        self.membership._id = 1

    def _take(self, term: Term | None) -> None:
        if term is None:
            self.left += 1
        else:
            self.terms.append(term)

    def hears(self, master: int, epoch: int, address: str) -> None:
        """Let a controller tell it of a term."""
        fields = RoleChangedRequest(
            master_address=address,
            master_broker_id=master,
            master_epoch=epoch,
            sync_state_set_epoch=7,
        ).to_fields()
        told = Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, fields, SET.encode())
        self.membership.told(told)

    def position(self) -> Position:
        return Position(self.last_epoch, 100, 90)


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Bed]:
    def play(
        test: Callable[[Bed], Coroutine[Any, Any, None]],
        last_epoch: int = -1,
        *,
        is_learner: bool = False,
    ) -> Bed:
        bed = Bed(tmp_path, last_epoch, is_learner=is_learner)
        asyncio.run(test(bed))
        return bed

    return play


Play = Callable[..., Bed]


def test_a_broker_takes_the_term_that_it_is_told(play: Play) -> None:
    async def test(bed: Bed) -> None:
        bed.controllers.registers(2, 5)
        await bed.membership._register()
        assert bed.terms == [Term(5, 1, 2, "h:2", SET)]
        assert bed.controllers.beats == 1

    play(test)


def test_without_a_master_it_asks_for_one(play: Play) -> None:
    async def test(bed: Bed) -> None:
        bed.controllers.registers(None, None)
        bed.controllers.elects(1, 6)
        await bed.membership._register()
        assert [(one.number, one.is_master) for one in bed.terms] == [(6, True)]

    play(test, 5)


def test_it_is_not_the_master_of_an_epoch_that_it_has_begun_in_another_process(play: Play) -> None:
    async def test(bed: Bed) -> None:
        controllers, membership = bed.controllers, bed.membership
        controllers.registers(1, 5)
        await membership._register()
        assert bed.terms == [] and controllers.beats == 0  # let them think that it is gone
        membership._beat()
        assert controllers.beats == 0
        # Nor by any other way.
        fields = RoleChangedRequest(
            master_address="h:1", master_broker_id=1, master_epoch=5, sync_state_set_epoch=7
        ).to_fields()
        membership.told(Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, fields, SET.encode()))
        controllers.looks(1, 5)
        await membership._look()
        controllers.elects(1, 5)
        await membership._elect()
        assert bed.terms == []
        # Until there is another epoch.
        controllers.registers(None, None)
        controllers.elects(1, 6)
        await membership._register()
        assert [one.number for one in bed.terms] == [6]
        assert controllers.beats == 1

    play(test, 5)


def test_it_may_follow_another_master_of_the_last_epoch_of_its_log(play: Play) -> None:
    async def test(bed: Bed) -> None:
        bed.controllers.registers(2, 5)
        await bed.membership._register()
        assert [one.number for one in bed.terms] == [5]

    play(test, 5)


def test_epochs_do_not_go_back(play: Play) -> None:
    async def test(bed: Bed) -> None:
        bed.controllers.registers(2, 4)
        await bed.membership._register()
        assert bed.terms == []

    play(test, 5)


def test_controllers_that_know_an_earlier_term_have_an_old_copy(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> int:
        found = sum("old copy" in line for line in caplog.messages)
        caplog.clear()
        return found

    async def test(bed: Bed) -> None:
        bed.controllers.registers(2, 6)
        await bed.membership._register()
        bed.controllers.looks(3, 5)
        for wanted in (1, 0):
            await bed.membership._look()
            assert said() == wanted
        bed.controllers.looks(2, 6)
        await bed.membership._look()
        bed.controllers.looks(3, 5)
        await bed.membership._look()
        assert said() == 1
        assert [one.number for one in bed.terms] == [6]

    play(test)


def test_an_answer_that_a_later_term_has_overtaken_is_no_old_copy(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bed: Bed) -> None:
        bed.controllers.registers(2, 6)
        await bed.membership._register()
        bed.controllers.looks(2, 6)
        real = bed.controllers.request

        async def request(code: int, header: Any, body: bytes = b"") -> Command:
            fields = RoleChangedRequest(
                master_address="h:3", master_broker_id=3, master_epoch=7, sync_state_set_epoch=7
            ).to_fields()
            told = Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, fields, SET.encode())
            bed.membership.told(told)
            return await real(code, header, body)

        played: Any = bed.controllers
        played.request = request
        await bed.membership._look()
        assert [one.number for one in bed.terms] == [6, 7]
        assert not caplog.messages

    play(test)


def test_a_broker_that_was_removed_says_how_it_comes_back(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bed: Bed) -> None:
        bed.controllers.answers[RequestCode.CONTROLLER_REGISTER_BROKER] = Command(
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, {}, remark="BrokerId: 1 hasn't"
        )
        for _ in range(2):
            await bed.membership._register()
        (text,) = caplog.messages
        assert "BrokerId: 1 hasn't" in text and "delete brokerIdentity (not the log)" in text
        assert bed.controllers.beats == 0
        bed.controllers.registers(2, 5)
        await bed.membership._register()
        assert len(bed.terms) == 1

    play(test)


def test_its_master_says_so_too(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def test(bed: Bed) -> None:
        request = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
        code = ResponseCode.CONTROLLER_INVALID_REPLICAS
        bed.controllers.answers[request] = Command(code, {}, remark="replicas {2} don't exist")
        await bed.membership.alter(frozenset({1, 2}), 7, term=3)
        (text,) = caplog.messages
        assert "{2}" in text and "delete brokerIdentity (not the log)" in text

    play(test)


def test_a_learner_waits_for_another_master(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bed: Bed) -> None:
        controllers = bed.controllers
        controllers.registers(None, None)
        await bed.membership._register()
        assert [code for code, _ in controllers.asked] == [RequestCode.CONTROLLER_REGISTER_BROKER]
        assert bed.terms == []
        assert [one for one in caplog.messages if "asyncLearner" in one]
        # Alive, and the last one in an election of any.
        assert [one.max_offset for one in controllers.told] == [-1]
        controllers.looks(2, 6)
        await bed.membership._look()
        assert [one.master_id for one in bed.terms] == [2]

    play(test, is_learner=True)


def test_a_learner_that_is_elected_is_not_heard_until_another_one_is(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    """The controllers take it for gone then. It may have been a member before it was a learner."""

    async def test(bed: Bed) -> None:
        controllers, membership = bed.controllers, bed.membership
        controllers.registers(2, 5)
        await membership._register()
        assert controllers.beats == 1
        controllers.looks(1, 6)
        await membership._look()
        await membership._look()
        membership._beat()
        assert controllers.beats == 1
        assert len([one for one in caplog.messages if "asyncLearner" in one]) == 1
        controllers.looks(2, 7)
        await membership._look()
        membership._beat()
        assert controllers.beats == 2
        assert [one.number for one in bed.terms] == [5, 7]

    play(test, is_learner=True)


def test_members_are_told_with_their_term(play: Play) -> None:
    async def test(bed: Bed) -> None:
        bed.controllers.registers(2, 6)
        await bed.membership._register()
        bed.controllers.looks(2, 6)
        await bed.membership._look()
        assert bed.members == [(6, SET)]

    play(test)


def test_a_change_of_the_set_is_asked_for_in_the_name_of_its_term(play: Play) -> None:
    async def test(bed: Bed) -> None:
        new = SyncStateSet(frozenset({1, 2}), 8)
        code = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
        bed.controllers.answers[code] = Command(ResponseCode.SUCCESS, {}, new.encode())
        assert await bed.membership.alter(new.broker_ids, 7, term=3) == new
        (_, header), *_ = bed.controllers.asked
        assert (header.master_epoch, header.master_broker_id) == (3, 1)

    play(test)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ResponseCode.CONTROLLER_INVALID_REPLICAS, None),
        (ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, None),
        (ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, SetRefused),
        (ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, SetRefused),
        (ResponseCode.CONTROLLER_INVALID_MASTER, SetRefused),
        (ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, SetRefused),
        (ResponseCode.SYSTEM_ERROR, BrokerError),
        (ResponseCode.SYSTEM_BUSY, BrokerError),
        (2015, BrokerError),
    ],
)
def test_which_answers_say_that_the_set_stays(
    play: Play, code: int, error: type[PymqError] | None
) -> None:
    """And which that any would: these sets differ in who belongs to them."""

    async def test(bed: Bed) -> None:
        request = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
        bed.controllers.answers[request] = Command(code, {}, remark="etcd did not answer")
        if error is None:
            assert await bed.membership.alter(frozenset({1, 2}), 7, term=3) is None
            return
        with pytest.raises(error, match="etcd did not answer"):
            await bed.membership.alter(frozenset({1, 2}), 7, term=3)

    play(test)


@pytest.mark.parametrize(
    "code",
    [ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH],
)
def test_a_set_that_is_refused_is_said_once(
    play: Play, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    """Masters ask several times a second."""

    async def test(bed: Bed) -> None:
        request = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
        for _ in range(2):
            bed.controllers.answers[request] = Command(code, {}, remark="2 does not live")
            for _ in range(3):
                with contextlib.suppress(SetRefused):
                    await bed.membership.alter(frozenset({1, 2}), 7, term=3)
            assert [one.levelname for one in caplog.records if "2 does" in one.message] == [
                "WARNING"
            ]
            caplog.clear()
            bed.controllers.answers[request] = Command(0, {}, SET.encode())
            await bed.membership.alter(frozenset({1}), 7, term=3)

    with caplog.at_level("INFO"):
        play(test)


# --------------------------------------------------------------------------- two brokers of one id


@pytest.mark.parametrize("is_master", [True, False])
@pytest.mark.parametrize("way", ["look", "told", "elect"])
def test_a_master_with_our_id_at_another_address_is_not_us(
    play: Play, caplog: pytest.LogCaptureFixture, is_master: bool, way: str
) -> None:
    async def test(bed: Bed) -> None:
        controllers, membership = bed.controllers, bed.membership
        controllers.registers(None, None)
        controllers.elects(1 if is_master else 2, 6)
        await membership._register()
        assert [(one.number, one.is_master) for one in bed.terms] == [(6, is_master)]
        other = ReplicaInfoResponse(master_broker_id=1, master_address="h:9", master_epoch=7)
        if way == "told":
            bed.hears(1, 7, "h:9")
        elif way == "look":
            answer = Command(0, other.to_fields(), SET.encode())
            controllers.answers[RequestCode.CONTROLLER_GET_REPLICA_INFO] = answer
            await membership._look()
        else:
            elected = ElectMasterResponse(
                master_broker_id=1,
                master_address="h:9",
                master_epoch=7,
                sync_state_set_epoch=8,
            )
            body = ElectedMaster(sync_state_set=frozenset({1})).encode()
            answer = Command(0, elected.to_fields(), body)
            controllers.answers[RequestCode.CONTROLLER_ELECT_MASTER] = answer
            await membership._elect()
        assert (bed.left, len(bed.terms), membership.term) == (1, 1, None)
        (text,) = [one for one in caplog.messages if "brokerIdentity" in one]
        assert "h:9" in text and "broker 1 of group b" in text
        beats = controllers.beats
        membership._beat()
        assert controllers.beats == beats
        # It asks for its id again, and is not the master of what may be the other one's epoch.
        controllers.registers(1, 7)
        await membership._register()
        assert len(bed.terms) == 1
        controllers.registers(None, None)
        controllers.elects(1, 8)
        await membership._register()
        assert [one.number for one in bed.terms] == [6, 8]

    play(test, 5)


@pytest.mark.parametrize("is_master", [True, False])
def test_a_broker_whose_id_is_another_ones_leaves_its_role(
    play: Play, caplog: pytest.LogCaptureFixture, is_master: bool
) -> None:
    async def test(bed: Bed) -> None:
        controllers, membership = bed.controllers, bed.membership
        controllers.registers(None, None)
        controllers.elects(1 if is_master else 2, 6)
        await membership._register()
        controllers.refuses(RequestCode.CONTROLLER_GET_REPLICA_INFO)
        controllers.refuses(RequestCode.CONTROLLER_REGISTER_BROKER)
        await membership._look()
        assert (bed.left, membership.term) == (1, None)
        for _ in range(3):
            await membership._register()
        bed.hears(2, 7, "h:2")  # not meant for us
        assert len(bed.terms) == 1
        said = "answers nobody: brokerId 1"
        assert len([one for one in warnings(caplog) if said in one]) == 1
        controllers.registers(2, 7)
        await membership._register()
        assert [one.master_id for one in bed.terms][1:] == [2]
        # It happens again.
        controllers.refuses(RequestCode.CONTROLLER_REGISTER_BROKER)
        await membership._look()
        await membership._register()
        assert len([one for one in warnings(caplog) if said in one]) == 2

    play(test, 5)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]


def test_each_reason_for_which_an_id_is_refused_is_said(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bed: Bed) -> None:
        code = RequestCode.CONTROLLER_REGISTER_BROKER
        bed.controllers.refuses(code)
        in_use = bed.controllers.answers[code]
        early = Command(in_use.code, {}, remark="this controller was just started")
        for answer in (in_use, in_use, early, early, in_use):
            bed.controllers.answers[code] = answer
            await bed.membership._register()
        reasons = [text.partition("answers nobody: ")[2] for text in warnings(caplog)]
        assert reasons == [in_use.remark, early.remark, in_use.remark]

    with caplog.at_level("DEBUG"):
        play(test)


def told_to_be_a_copy(bed: Bed) -> None:
    code = RequestCode.CONTROLLER_REGISTER_BROKER
    bed.controllers.refuses(code)
    refusal = bed.controllers.answers[code]
    bed.controllers.answers[code] = Command(
        refusal.code, {"copyOf": "h:9"}, remark=refusal.remark
    )


def test_a_copy_does_not_ask_again(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    """The controllers forget it, with its connection or when another one leads."""

    async def test(bed: Bed) -> None:
        told_to_be_a_copy(bed)
        await asyncio.wait_for(bed.membership._run(), 10.0)  # until it is started again
        assert len(bed.controllers.asked) == 1 and bed.controllers.beats == 0
        (text,) = warnings(caplog)
        assert "copy of broker 1 of group b" in text and "h:9" in text

    play(test)


def test_who_has_had_its_id_is_no_copy(play: Play) -> None:
    """Whatever a controller says that leads since it was put out."""

    async def test(bed: Bed) -> None:
        bed.controllers.registers(2, 6)
        await bed.membership._register()
        bed.controllers.refuses(RequestCode.CONTROLLER_GET_REPLICA_INFO)
        await bed.membership._look()
        told_to_be_a_copy(bed)
        await bed.membership._register()
        assert not bed.membership._refusals.is_copy

    play(test)


def test_who_has_had_its_id_says_so_and_what_its_log_has(play: Play) -> None:
    """Other controllers, and those over another connection, know nothing of that."""

    def registered(bed: Bed) -> list[tuple[int | None, bool | None]]:
        code = RequestCode.CONTROLLER_REGISTER_BROKER
        headers = [header for asked, header in bed.controllers.asked if asked == code]
        return [(header.log_epoch, header.has_had_id) for header in headers]

    async def test(bed: Bed) -> None:
        bed.controllers.refuses(RequestCode.CONTROLLER_REGISTER_BROKER)
        await bed.membership._register()
        bed.controllers.registers(2, 6)
        await bed.membership._register()
        assert registered(bed) == [(5, None), (5, None)]
        bed.controllers.refuses(RequestCode.CONTROLLER_GET_REPLICA_INFO)
        await bed.membership._look()
        bed.last_epoch = 6
        await bed.membership._register()
        assert registered(bed)[2:] == [(6, True)]

    play(test, 5)


def test_a_new_master_tells_at_once_that_its_log_has_the_epoch(play: Play) -> None:
    """Before it acknowledges anything, or soon after: no store without it counts then."""

    async def test(bed: Bed) -> None:
        controllers = bed.controllers
        controllers.registers(None, None)
        controllers.elects(1, 6)
        await bed.membership._register()
        for _ in range(3):
            await asyncio.sleep(BEGUN_POLL_S)
        assert [one.epoch for one in controllers.told] == [5]
        bed.last_epoch = 6
        async with asyncio.timeout(60.0):
            while controllers.beats < 2:
                await asyncio.sleep(BEGUN_POLL_S)
        assert controllers.told[-1].epoch == 6
        # Not of a term that is over.
        controllers.looks(1, 7)
        await bed.membership._look()
        controllers.looks(2, 8)
        await bed.membership._look()
        bed.last_epoch = 8
        for _ in range(3):
            await asyncio.sleep(BEGUN_POLL_S)
        assert controllers.beats == 2

    play(test, 5)


def test_a_copy_is_not_the_master_of_its_originals_epoch(play: Play) -> None:
    """RocketMQ's controllers give the id, and with it the term, to whoever registers last."""

    async def test(bed: Bed) -> None:
        bed.controllers.registers(1, 6)  # copied when the epoch was 5
        await bed.membership._register()
        bed.hears(1, 6, "h:1")
        assert bed.terms == [] and bed.controllers.beats == 0

    play(test, 5)


def test_a_broker_that_registers_again_stays_the_master(play: Play) -> None:
    async def test(bed: Bed) -> None:
        bed.controllers.registers(None, None)
        bed.controllers.elects(1, 6)
        await bed.membership._register()
        bed.controllers.registers(1, 6)
        await bed.membership._register()
        assert bed.left == 0 and bed.controllers.beats == 2

    play(test, 5)


def test_controllers_are_told_who_asks(play: Play) -> None:
    async def test(bed: Bed) -> None:
        assert bed.membership._greeting() is None
        bed.controllers.registers(2, 6)
        await bed.membership._register()
        greeting = bed.membership._greeting()
        assert greeting is not None and greeting.code == RequestCode.BROKER_HEARTBEAT
        fields = greeting.fields or {}
        assert (fields["brokerId"], fields["brokerAddr"]) == ("1", "h:1")

    play(test)
