"""Tag expressions as users write them, told apart from the SQL that some write instead.

A tag may hold almost any character, so that nothing fails when ``a > 5`` is taken for a tag: it is
the name of one that no message has, and its subscriber gets nothing. An expression is taken for SQL
when it holds what RocketMQ's SQL92 filters are made of: a comparison, or operands joined by one of
the grammar's keywords. Each tag becomes a text with one letter for each of its tokens, in which
the keywords are found by a regular expression: ``TAGS is not null`` is ``xin0``.
"""

import re

from pymq.errors import LocalProtocolError

_TOKEN = re.compile(r"'[^']*'|\"[^\"]*\"|[<>=!]+|[(),]|[^\s<>=!(),'\"]+|\S")
_KEYWORDS = {
    "IS": "i",
    "NOT": "n",
    "NULL": "0",
    "BETWEEN": "b",
    "IN": "I",
    "AND": "&",
    "OR": "&",
    "CONTAINS": "c",
    "STARTSWITH": "c",
    "ENDSWITH": "c",
}
_SQL = re.compile(r"=|xin?0|xn?bx&x|xn?I\(|xn?cx|x\)*&n?\(*x|^n\(*x")


def check_tags(topic: str, expression: str) -> None:
    """Accept the tag expression of a subscription.

    Args:
        topic: subscribed to, for the error's text.
        expression: ``*``, or tags joined by ``||``.

    Raises:
        LocalProtocolError: it is an SQL expression.
    """
    if any(_SQL.search(_letters(tag)) for tag in expression.split("||")):
        raise LocalProtocolError(
            f"topic {topic!r}: {expression[:200]!r} is an SQL expression, expected '*' or tags "
            "joined by '||', such as 'TagA || TagB'. Consumers select by properties with sql=...; "
            "elsewhere, read everything and look at the properties"
        )


def _letters(tag: str) -> str:
    return "".join(map(_letter, _TOKEN.findall(tag)))


def _letter(token: str) -> str:
    if token[0] in "<>=!":
        return "="
    if token in "(),":
        return token
    return _KEYWORDS.get(token.upper(), "x")
