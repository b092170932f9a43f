"""Who the brokers of connections say to be."""

from pymq.controller.claims import CLAIM_COUNT_MAX, HOLDER_COUNT_MAX, OVERLAP_S, Claims
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
    refuse(claims, connection, heard_s=10.0, now_s=10.0)
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
    assert refused(10.3 + OVERLAP_S, 20.0) == "h:1"
    assert claims.original_of(one, "b", 2) is None
    assert claims.original_of(Connection(), "b", 1) is None  # started again, or another one


def test_who_had_the_id_and_was_put_out_is_no_copy() -> None:
    """It may have the later data, and is told to wait until the other one is gone."""
    claims, mine, others = Claims(), Connection(), Connection()
    claims.beats(mine, "b", 1, "h:1")
    assert claims.why_not_member(mine, GROUP) is None
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
    assert refuse(claims, one, heard_s=16.3 + OVERLAP_S, awake_s=16.0, now_s=20.0) == "h:1"


def test_each_kind_of_refusal_is_news_once_until_the_id_is_held() -> None:
    claims, one = Claims(), Connection()

    def news(connection: Connection) -> list[bool]:
        kinds = ("in use", "early", "in use")
        return [claims.is_news(connection, "b", 1, kind) for kind in kinds]

    assert news(one) == [True, True, False]
    assert news(one) == [False, False, False]
    assert news(Connection()) == [True, True, False]
    claims.holds(one, "b", 1, "h:1")
    assert news(one) == [True, True, False]


def test_what_one_connection_claims_has_a_limit() -> None:
    claims, one = Claims(), Connection()
    for broker_id in range(2 * CLAIM_COUNT_MAX):
        claims.beats(one, "b", broker_id, "h:9")
        refuse(claims, one, broker_id=broker_id)
        claims.is_news(one, "b", broker_id, "in use")
    of_one = claims._of(one)
    assert len(of_one.beating) == len(of_one.refused_s) == CLAIM_COUNT_MAX
    assert len(of_one.refusals) == CLAIM_COUNT_MAX
    for broker_id in range(2 * CLAIM_COUNT_MAX):
        claims.holds(one, "b", broker_id, "h:1")
    assert len(of_one.held) == CLAIM_COUNT_MAX
    for broker_id in range(HOLDER_COUNT_MAX + 1):
        claims.holds(one, "b", broker_id, "h:1")
    assert len(claims._holders) <= HOLDER_COUNT_MAX
