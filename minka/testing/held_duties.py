"""Duties for tests of a delegate, without a cluster."""

from collections.abc import Callable
from dataclasses import replace

from minka.duties.delegate import Duty


def held(duty: Duty, is_held: Callable[[], bool] | None = None) -> Duty:
    """The duty as a shard would give it to your delegate. Its method `is_held` calls the argument `is_held`; without
    the argument, the method returns True.

    delegate.attach([held(Duty(number=1, epoch=7, pallet="feeds", id="bbc"))])
    """
    return replace(duty, _holds=lambda number, epoch: is_held is None or is_held())
