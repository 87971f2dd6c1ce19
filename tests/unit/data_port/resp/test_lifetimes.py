"""The node accepts the same times of expiry as Redis: up to the last millisecond that fits into 64 bits."""

import time

import pytest

from minka.wire.key_operations import Lifetime
from minkad.data_port.resp.lifetimes import Until, lifetime_of, until
from minkad.data_port.resp.replies import RespError

LAST = 2**63 - 1
EPOCH = Until(Lifetime.UNTIL, 0)


@pytest.mark.parametrize(
    ("option", "number", "expected"),
    [
        (b"EX", 5, Until(Lifetime.FOR, 5000)),
        (b"PX", 5, Until(Lifetime.FOR, 5)),
        (b"PX", 0, Until(Lifetime.FOR, 0)),
        (b"PX", -1, EPOCH),
        (b"PX", -(2**63), EPOCH),
        (b"EX", -(LAST // 1000), EPOCH),
        (b"EXAT", 5, Until(Lifetime.UNTIL, 5000)),
        (b"EXAT", LAST // 1000, Until(Lifetime.UNTIL, LAST // 1000 * 1000)),
        (b"EXAT", -(LAST // 1000), EPOCH),
        (b"PXAT", LAST, Until(Lifetime.UNTIL, LAST)),
        (b"PXAT", -(2**63), EPOCH),
    ],
)
def test_accepted_times(option: bytes, number: int, expected: Until) -> None:
    assert until(option, number, "expire") == expected


@pytest.mark.parametrize(
    ("option", "number"),
    [
        (b"EX", LAST // 1000),
        (b"EX", -(LAST // 1000) - 1),
        (b"PX", LAST),
        (b"EXAT", LAST // 1000 + 1),
        (b"EXAT", -(LAST // 1000) - 1),
    ],
)
def test_times_that_do_not_fit_into_64_bits_are_refused(option: bytes, number: int) -> None:
    with pytest.raises(RespError, match="ERR invalid expire time in 'expire' command"):
        until(option, number, "expire")


def test_relative_times_have_the_same_limit_as_absolute_ones() -> None:
    now = time.time_ns() // 1_000_000
    assert until(b"PX", LAST - now - 60_000, "expire") == Until(Lifetime.FOR, LAST - now - 60_000)
    with pytest.raises(RespError, match="invalid expire time"):
        until(b"PX", LAST - now + 1, "expire")


@pytest.mark.parametrize("word", [b"0", b"-1", b"-9223372036854775808"])
def test_a_write_with_a_time_that_is_not_positive_is_refused(word: bytes) -> None:
    for option in (b"EX", b"PX", b"EXAT", b"PXAT"):
        with pytest.raises(RespError, match="ERR invalid expire time in 'set' command"):
            lifetime_of(option, word, "set")
