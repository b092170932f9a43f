"""Tags are taken as tags, and SQL is not taken for a tag."""

import pytest

from pymq.errors import LocalProtocolError
from pymq.filter.tags import check_tags

TAGS = """
    *
    TagA
    TagA || TagB
    TagA||TagB||2024-01-01
    order created
    Made in China
    in || not || between || is || null || and || or
    it's
    a.b/c:d-e_f#1
    größe
    50% (half)
"""

SQL = """
    a > 5
    a>5
    a >= 5 AND b < 3
    a <> 'x'
    a = 'x || y'
    TAGS is not null
    TAGS IS NULL
    a between 1 and 5
    a NOT BETWEEN 1 AND 5
    region in ('eu', 'us')
    region not in ('eu')
    NOT (a = 1)
    NOT TagA
    TagA OR TagB
    TagA and TagB
    (TAGS is not null and TAGS in ('TagA', 'TagB')) and (a is not null and a between 0 and 3)
    name CONTAINS 'x'
    TagA || a > 5
"""


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("expression", ["", *lines(TAGS)])
def test_tags_are_accepted(expression: str) -> None:
    check_tags("T", expression)


@pytest.mark.parametrize("expression", lines(SQL))
def test_sql_is_refused_with_what_to_write_instead(expression: str) -> None:
    with pytest.raises(LocalProtocolError, match="is an SQL expression, expected .*TagA"):
        check_tags("T", expression)
