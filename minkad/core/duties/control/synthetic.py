"""Synthetic duties: every shard that takes the pallet has each of them."""

from collections.abc import Collection, Iterator

from minka.v1.duties_pb2 import Shard, ShardState
from minkad.core.duties.control.quarantines import quarantine_of
from minkad.core.duties.control.suspects import is_suspect
from minkad.core.state import State

_S = ShardState


def lacking_on(state: State, shard: Shard, pallets: Collection[str], *, with_suspects: bool = False) -> Iterator[int]:
    """The synthetic duties of these pallets that the shard is to get."""
    held = state.duties.on_shard.get(shard.name, {})
    for pallet in (one.pallet for one in shard.pallets if one.pallet in pallets):
        some = state.duties.synthetic[pallet]
        # Most shards have all synthetic duties; this is the quickest way to see it.
        if not some.keys() <= held.keys() and _is_trusted_with(state, shard, pallet):
            rows = (state.duties.duties[number] for number in some if number not in held)
            meant = (row for row in rows if with_suspects or not is_suspect(row))
            yield from (row.number for row in meant if not row.deleting and quarantine_of(state, row, shard) is None)


def _is_trusted_with(state: State, shard: Shard, pallet: str) -> bool:
    """True if the shard is LIVE; or if it is QUARANTINED, and no LIVE shard takes the pallet."""
    if shard.state != _S.SHARD_STATE_QUARANTINED:
        return shard.state == _S.SHARD_STATE_LIVE
    others = (one for one in state.duties.shards.values() if one.state == _S.SHARD_STATE_LIVE)
    return not any(said.pallet == pallet for one in others for said in one.pallets)
