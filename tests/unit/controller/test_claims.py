"""Who the brokers of connections say to be."""

from pymq.controller.claims import (
    CLAIM_COUNT_MAX,
    HOLDER_COUNT_MAX,
    OVERLAP_S,
    REFUSAL_COUNT_MAX,
    REFUSED_COUNT_MAX,
    Claims,
)
from pymq.controller.groups import GroupState, Member


class Connection:
    """Of some broker."""


GROUP = GroupState(
    cluster="c", name="b", members={1: Member(address="h:1"), 2: Member(address="h:2")}
)


def refuse(
    claims: Claims,
    connection: Connection,
    *,
    broker_id: int = 1,
    heard_s: float = 0.0,
    awake_s: float = 0.0,
    now_s: float = 0.0,
) -> str | None:
    """Refuse a broker its id; return whose copy it is."""
    claims.refused(
        connection,
        "b",
        broker_id,
        holder="h:1",
        heard_s=heard_s,
        awake_s=awake_s,
        now_s=now_s,
    )
    return claims.original_of(connection, "b", broker_id)


def refused_for_long(claims: Claims, connection: Connection) -> bool:
    """Is it a copy, when it is refused while the other one goes on beating?"""
    for now_s in (10.0, 15.0):
        refuse(claims, connection, heard_s=now_s, now_s=now_s)
    return refuse(claims, connection, heard_s=20.0, now_s=20.0) is not None


def test_who_beats_from_another_address_is_no_member() -> None:
    claims, one = Claims(), Connection()
    assert claims.why_not_member(one, GROUP) is None
    claims.beats(one, "b", 1, "h:9")
    claims.beats(one, "other", 1, "h:1")
    reason = claims.why_not_member(one, GROUP) or ""
    assert "h:1" in reason and "h:9" in reason
    assert claims.why_not_member(Connection(), GROUP) is None
    claims.beats(one, "b", 1, "h:1")  # it has registered
    assert claims.why_not_member(one, GROUP) is None


def test_who_is_not_known_or_says_no_address_is_asked_nothing() -> None:
    claims = Claims()
    for broker_id, address in ((7, "h:9"), (1, "")):
        connection = Connection()
        claims.beats(connection, "b", broker_id, address)
        assert claims.why_not_member(connection, GROUP) is None


def test_a_process_may_have_two_brokers_of_a_group() -> None:
    claims, one = Claims(), Connection()
    claims.beats(one, "b", 1, "h:9")
    claims.beats(one, "b", 2, "h:2")
    assert claims.why_not_member(one, GROUP) is None


def test_who_asks_for_an_id_while_its_holder_goes_on_beating_is_a_copy() -> None:
    claims, one = Claims(), Connection()

    def refused(heard_s: float, now_s: float) -> str | None:
        return refuse(claims, one, heard_s=heard_s, now_s=now_s)

    assert refused(10.0, 10.2) is None
    assert refused(10.2 + OVERLAP_S, 20.0) is None  # what it sent before its end
    assert refused(16.0, 20.0) is None
    assert refused(16.0 + OVERLAP_S, 20.0) is None
    assert refused(16.1 + OVERLAP_S, 20.0) == "h:1"
    assert claims.original_of(one, "b", 2) is None
    assert claims.original_of(Connection(), "b", 1) is None  # started again, or another one


def test_what_a_network_delivers_late_is_no_sign_of_life() -> None:
    """The host of the one before was cut off; it has ended when what it had sent arrives."""
    claims, one = Claims(), Connection()
    assert refuse(claims, one, heard_s=10.0, now_s=10.2) is None
    for now_s in (17.0, 18.0, 25.0):  # all of it arrived at once
        assert refuse(claims, one, heard_s=16.5, now_s=now_s) is None


def test_a_holder_whose_heartbeats_are_far_apart_is_alive() -> None:
    claims, one = Claims(), Connection()
    found = [refuse(claims, one, heard_s=now_s, now_s=now_s) for now_s in (10.0, 15.0, 20.0)]
    assert found == [None, None, "h:1"]


def test_who_had_the_id_and_was_put_out_is_no_copy() -> None:
    """It may have the later data, and is told to wait until the other one is gone."""
    claims, mine, others = Claims(), Connection(), Connection()
    claims.beats(mine, "b", 1, "h:1")
    assert claims.why_not_member(mine, GROUP) is None
    claims.note_held(mine, GROUP)
    claims.holds(others, "b", 1, "h:9")
    assert not refused_for_long(claims, mine)
    # It was frozen for so long that its connection has ended, and does not know of the other one.
    mine = Connection()
    claims.beats(mine, "b", 1, "h:1")
    assert not refused_for_long(claims, mine)
    # Not so a process that was only started there, from a copy perhaps.
    assert refused_for_long(claims, Connection())
    # Nor one that never had the id.
    copy = Connection()
    claims.beats(copy, "b", 1, "h:7")
    assert refused_for_long(claims, copy)


def test_after_a_standstill_of_ours_an_overlap_begins_anew() -> None:
    """What was sent meanwhile was sent nobody knows when, also by a broker that has ended since."""
    claims, one = Claims(), Connection()
    assert refuse(claims, one, heard_s=10.0, now_s=10.0) is None
    assert refuse(claims, one, heard_s=16.1, awake_s=16.0, now_s=16.2) is None
    assert refuse(claims, one, heard_s=16.2 + OVERLAP_S, awake_s=16.0, now_s=20.0) is None
    assert refuse(claims, one, heard_s=16.3 + OVERLAP_S, awake_s=16.0, now_s=20.0) is None
    # Again, and all begins again.
    assert refuse(claims, one, heard_s=30.0, awake_s=29.0, now_s=30.0) is None
    assert refuse(claims, one, heard_s=30.1 + OVERLAP_S, awake_s=29.0, now_s=34.0) is None
    late_s = 30.2 + 2 * OVERLAP_S
    assert refuse(claims, one, heard_s=late_s, awake_s=29.0, now_s=late_s) == "h:1"


def test_a_question_changes_nothing() -> None:
    claims, mine, others = Claims(), Connection(), Connection()
    claims.beats(mine, "b", 1, "h:1")
    assert claims.why_not_member(mine, GROUP) is None
    claims.holds(others, "b", 1, "h:9")
    assert refused_for_long(claims, mine)  # nobody said that it had the id


def test_each_kind_of_refusal_is_news_once_until_another_one_has_the_id() -> None:
    """Whoever connects again and again, over connections without number."""
    claims = Claims()

    def news(address: str) -> list[bool]:
        kinds = ("in use", "early", "in use")
        return [claims.is_news("b", 1, address, kind) for kind in kinds]

    claims.holds(Connection(), "b", 1, "h:1")
    assert news("h:8") == [True, True, False]
    assert news("h:9") == [True, True, False]
    claims.holds(Connection(), "b", 1, "h:1")
    assert news("h:8") == news("h:9") == [False, False, False]
    claims.holds(Connection(), "b", 1, "h:9")
    assert news("h:8") == [True, True, False]


def test_refusals_that_are_said_have_a_limit() -> None:
    claims = Claims()
    said = sum(claims.is_news("b", 1, f"h:{port}", "in use") for port in range(1_000))
    assert said == REFUSAL_COUNT_MAX
    for broker_id in range(2 * REFUSED_COUNT_MAX):
        claims.is_news("b", broker_id, "h:1", "in use")
    assert len(claims._said) <= REFUSED_COUNT_MAX


def test_what_one_connection_claims_has_a_limit() -> None:
    claims, one = Claims(), Connection()
    for broker_id in range(2 * CLAIM_COUNT_MAX):
        claims.beats(one, "b", broker_id, "h:9")
        refuse(claims, one, broker_id=broker_id)
    of_one = claims._of(one)
    assert len(of_one.beating) == len(of_one.refused_s) == CLAIM_COUNT_MAX
    for broker_id in range(2 * CLAIM_COUNT_MAX):
        claims.holds(one, "b", broker_id, "h:1")
    assert len(of_one.held) == CLAIM_COUNT_MAX
    for broker_id in range(HOLDER_COUNT_MAX + 1):
        claims.holds(one, "b", broker_id, "h:1")
    assert len(claims._holders) <= HOLDER_COUNT_MAX
