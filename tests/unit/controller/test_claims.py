"""Who the brokers of connections say to be."""

from pymq.controller.claims import CLAIM_COUNT_MAX, OVERLAP_S, Claims
from pymq.controller.groups import GroupState, Member


class Connection:
    """Of some broker."""


GROUP = GroupState(
    cluster="c", name="b", members={1: Member(address="h:1"), 2: Member(address="h:2")}
)


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
        claims.refused(one, "b", 1, holder="h:1", heard_s=heard_s, now_s=now_s)
        return claims.original_of(one, "b", 1)

    assert refused(10.0, 10.2) is None
    assert refused(10.2 + OVERLAP_S, 20.0) is None  # what it sent before its end
    assert refused(10.3 + OVERLAP_S, 20.0) == "h:1"
    assert claims.original_of(one, "b", 2) is None
    assert claims.original_of(Connection(), "b", 1) is None  # started again, or another one


def test_what_one_connection_claims_has_a_limit() -> None:
    claims, one = Claims(), Connection()
    for broker_id in range(2 * CLAIM_COUNT_MAX):
        claims.beats(one, "b", broker_id, "h:9")
        claims.refused(one, "b", broker_id, holder="h:1", heard_s=0.0, now_s=0.0)
    assert len(claims._of(one).beating) == len(claims._of(one).refused_s) == CLAIM_COUNT_MAX
