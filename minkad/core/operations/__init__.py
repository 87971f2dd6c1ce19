"""The effects of conditional writes, counters and expiry: pure, see `minka.wire.key_operations`."""

from minkad.core.operations.effect import Decision, decide, keys_of

__all__ = ["Decision", "decide", "keys_of"]
