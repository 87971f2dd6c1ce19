"""Commands proposed to Raft, and the futures of the callers that wait until the commands are applied."""

import asyncio
from collections.abc import Sequence
from typing import Final

from minka.errors import MinkaError

MAX_ENTRY_BYTES: Final = 256 * 1024  # of proposals that share an entry; a larger proposal has an entry of its own

Proposals = list[tuple[Sequence[bytes], asyncio.Future[None]]]


def shares_of(proposals: Proposals) -> list[Proposals]:
    """Divide proposals into the entries that carry them."""
    shares: list[Proposals] = []
    size = MAX_ENTRY_BYTES
    for proposal in proposals:
        added = sum(map(len, proposal[0]))
        size += added
        if size > MAX_ENTRY_BYTES:
            shares.append([])
            size = added
        shares[-1].append(proposal)
    return shares


def answer(proposals: Proposals, error: MinkaError | None) -> None:
    """Tell the callers that the commands are applied, or the error."""
    for _, future in proposals:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
