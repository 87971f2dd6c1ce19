"""The controller's part in duties: changes by clients, the coming and going of shards, and the choice of a shard."""

import minkad.core.controller  # noqa: F401  # its tables list what is here, so it comes first whoever imports which
