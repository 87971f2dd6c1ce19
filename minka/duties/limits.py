"""How much may be said of duties at once: the one place where that is declared."""

from typing import Final

MAX_PAYLOAD_BYTES: Final = 1024 * 1024  # bytes, of one duty's payload
MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024  # bytes, for the payloads of one request or answer together
MAX_CHANGES: Final = 1_000  # changes in one request, which is done as a whole
MAX_ID_CHARS: Final = 256  # for a duty's id, a pallet's and a shard's name
MAX_WEIGHT: Final = 1_000_000_000_000  # so that the weights of a million duties can be added up
