"""The limits for duties and for requests about them, which are declared only here."""

from typing import Final

MAX_PAYLOAD_BYTES: Final = 1024 * 1024  # the most bytes of one duty's payload
MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024  # the most bytes of all payloads together in one request or answer
MAX_CHANGES: Final = 1_000  # the most changes (all are made, or none) or names in one request
MAX_ID_CHARS: Final = 256  # the most characters in a duty's id, and in the name of a pallet or a shard
MAX_WEIGHT: Final = 1_000_000_000_000  # the sum of a million such weights still fits in 64 bits
MAX_PALLETS: Final = 1_000  # the most pallets whose duties one shard takes
