"""Redis's protocol at one node, built from the node's parts."""

import asyncio
import random
import ssl
import time
from collections.abc import Callable
from typing import cast

from minkad.core.state import OwnTable
from minkad.data_port.resp.connection import RespConnection
from minkad.data_port.resp.elsewhere import Elsewhere
from minkad.data_port.resp.errands import Means
from minkad.data_port.resp.keyspaces import Keyspaces
from minkad.data_port.resp.refusals import Refusals
from minkad.data_port.resp.scanning import Cursors
from minkad.data_port.resp.service import Service
from minkad.data_port.resp.slot_keys import Walks
from minkad.data_port.resp.table import COMMANDS
from minkad.process.memory import Memory
from minkad.process.telemetry import Telemetry
from minkad.replication.serving.client_requests import Requests


class RespPort:
    """Makes the protocols of connections."""

    def __init__(
        self,
        node_id: str,
        cluster_id: str,
        own_address: str,
        table: OwnTable,
        requests: Requests,
        telemetry: Telemetry,
        memory: Memory,
        tls: Callable[[], ssl.SSLContext | None],
        knows_table: Callable[[], bool] = lambda: True,
    ) -> None:
        """`own_address`: the data port's address for clients. `memory` is the memory for clients. `tls` returns the
        context for connections to other nodes. `knows_table` returns False if the table here may lack keyspaces that
        exist.
        """
        self._elsewhere = Elsewhere(cluster_id, tls)
        keyspaces = Keyspaces(table, self._elsewhere.keep)
        refusals = Refusals(node_id, keyspaces, time.monotonic, random.Random())
        means = Means(node_id, requests, keyspaces, refusals, self._elsewhere, telemetry)
        self.service = Service(means, memory, COMMANDS, Cursors(), Walks(), own_address, knows_table)

    def protocol(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        return cast("asyncio.Protocol", RespConnection(self.service))

    def close(self) -> None:
        """End all connections."""
        self.service.close()
        self._elsewhere.close()
