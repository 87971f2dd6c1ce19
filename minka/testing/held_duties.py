"""Duties for tests of a delegate, without a cluster."""

from collections.abc import Callable
from dataclasses import replace

from minka.duties.delegate import Duty


def held(duty: Duty, is_held: Callable[[], bool] | None = None) -> Duty:
    """The duty as a shard would give it to your delegate: its `is_held()` returns what `is_held` returns (None: True).

    delegate.attach([held(Duty(number=1, epoch=7, pallet="feeds", id="bbc"))])
    """
    return replace(duty, _holds=lambda number, epoch: is_held is None or is_held())
