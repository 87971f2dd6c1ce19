"""The exit statuses of minkad."""

import pytest

from minka.errors import Code, MinkaError
from minkad.process.exits import FAILED, MISTAKE, REFUSED, status_of


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.NODE_REMOVED, REFUSED),
        (Code.WRONG_DATA_DIRECTORY, REFUSED),
        (Code.CLUSTER_MISMATCH, REFUSED),
        (Code.DATA_DIRECTORY_ROLLED_BACK, REFUSED),
        (Code.QUORUM_ROLLED_BACK, REFUSED),
        (Code.UNKNOWN_FORMAT, REFUSED),
        # These causes may end without a person: the other process stops, the disk has room again, the network is back.
        (Code.NODE_ID_TAKEN, FAILED),
        (Code.ADDRESS_IN_USE, FAILED),
        (Code.DATA_DIRECTORY_IN_USE, FAILED),
        (Code.STORAGE_FAILED, FAILED),
        (Code.ADDRESS_UNAVAILABLE, FAILED),
        (Code.INVALID_CONFIG, MISTAKE),
    ],
)
def test_only_lasting_causes_have_the_status_refused(code: Code, status: int) -> None:
    assert status_of(MinkaError(code, "the reason")) == status
