"""No unit test leaves a store open to those that follow it in the same process."""

from collections.abc import Iterator

import pytest
from tests.unit.store.stores import close_left_stores


@pytest.fixture(autouse=True)
def stores_of_one_test() -> Iterator[None]:
    yield
    close_left_stores()
