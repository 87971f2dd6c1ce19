"""Reads of payloads for several sessions at once."""

import asyncio
from collections.abc import Iterable

import pytest

from minka.errors import Code, MinkaError
from minkad.duties.node.payload_reads import MAX_BYTES, PayloadReads


class Store:
    """A store that has every payload. A read of the payload `broken` fails."""

    def __init__(self, broken: bytes = b"") -> None:
        self.calls: list[set[bytes]] = []
        self._broken = broken

    async def get_many(self, ids: Iterable[bytes], timeout: float) -> dict[bytes, bytes]:
        """Return payloads that contain their ids."""
        self.calls.append(set(ids))
        await asyncio.sleep(0)
        if self._broken in self.calls[-1]:
            raise MinkaError(Code.UNREACHABLE, "no leader answers")
        return {id_: b"payload of " + id_ for id_ in self.calls[-1]}


async def test_payloads_wanted_at_the_same_time_are_read_by_one_call() -> None:
    store = Store()
    reads = PayloadReads(store)
    a, b = await asyncio.gather(reads.get_many([b"1", b"2"], 20), reads.get_many([b"3"], 20))
    assert store.calls == [{b"1", b"2", b"3"}]
    assert (a[b"2"], b[b"3"]) == (b"payload of 2", b"payload of 3")
    await reads.get_many([b"4"], 10)
    assert store.calls[1:] == [{b"4"}]


async def test_a_call_reads_at_most_the_bytes_of_a_message() -> None:
    store = Store()
    reads = PayloadReads(store)
    half = MAX_BYTES // 2
    await asyncio.gather(*(reads.get_many([b"%d" % n], half) for n in range(5)))
    assert sorted(map(len, store.calls)) == [1, 2, 2]


async def test_a_payload_that_can_not_be_read_fails_all_reads_of_its_call() -> None:
    store = Store(broken=b"2")
    reads = PayloadReads(store)
    outcomes = await asyncio.gather(reads.get_many([b"1"], 1), reads.get_many([b"2"], 1), return_exceptions=True)
    assert [type(one) for one in outcomes] == [type(outcomes[1])] * 2
    with pytest.raises(MinkaError, match="no leader answers"):
        raise outcomes[0]  # type: ignore[misc]
    assert await reads.get_many([b"1"], 1) == {b"1": b"payload of 1"}


async def test_a_session_that_ends_does_not_disturb_the_reads_of_others() -> None:
    store = Store()
    reads = PayloadReads(store)
    gone, stays = asyncio.create_task(reads.get_many([b"1"], 1)), asyncio.create_task(reads.get_many([b"2"], 1))
    await asyncio.sleep(0)
    gone.cancel()
    assert await stays == {b"2": b"payload of 2"}
    assert store.calls == [{b"2"}]
