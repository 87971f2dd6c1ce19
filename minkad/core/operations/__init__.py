"""What conditional writes, counters and expiry do: pure, see `minka.wire.key_operations`."""

from minkad.core.operations.decide import Decision, decide, keys_of

__all__ = ["Decision", "decide", "keys_of"]
