"""Values that users give are accepted, or refused with a text that fits them."""

import pytest

from pymq import Producer, SendHook, blocking
from pymq.client.checks import check_hooks, check_producer
from pymq.errors import ConfigurationError


def test_hooks_are_a_list_that_can_be_read_again() -> None:
    hook = SendHook()
    assert check_hooks([hook], SendHook, None) == (hook,)
    assert check_hooks((hook,), SendHook, None) == (hook,)
    assert check_hooks((), SendHook, None) == ()


@pytest.mark.parametrize(
    "hooks", [(hook for hook in [SendHook()]), iter([SendHook()]), {SendHook(): 1}, "hook", b"", 7]
)
def test_what_is_not_a_list_of_hooks_is_refused(hooks: object) -> None:
    with pytest.raises(ConfigurationError, match="expected a list of SendHook"):
        check_hooks(hooks, SendHook, None)


def test_the_other_kind_is_named_to_who_gives_a_producer_of_it() -> None:
    def told(producer: object) -> str:
        with pytest.raises(ConfigurationError) as refused:
            check_producer(producer, Producer, name="pymq.Producer", other="pymq.blocking.Batcher")
        return str(refused.value)

    assert "pymq.blocking.Batcher takes those" in told(blocking.Producer("127.0.0.1:1"))
    for wrong in (None, "127.0.0.1:9876"):
        assert told(wrong) == f"producer={wrong!r}: expected a pymq.Producer"
