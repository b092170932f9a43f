"""How a handler says no: a BrokerError that the dispatcher turns into the response."""

from pymq.errors import BrokerError


def refusal(code: int, remark: str) -> BrokerError:
    """Return the error whose code and remark the client will get.

    Args:
        code: response code.
        remark: what is wrong, where, and what to do, in one sentence.
    """
    return BrokerError.by_code.get(code, BrokerError)(remark, code=code, remark=remark)
