"""Removes unneeded files from the spool."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from minka.v1.loads_pb2 import Load, LoadFile, LoadState
from minkad.core.state import OwnTable
from minkad.loads.spool import Spool

log: Final = logging.getLogger(__name__)

_INTERVAL_S: Final = 2.0


class Collecting:
    """A file stays while its load is staged or committed, and later while the load's mark is in the log of a replica
    here, since followers may need the file. Files of loads that this node has not heard of yet also stay.
    """

    def __init__(self, spool: Spool, table: OwnTable, is_in_log: Callable[[int, int], bool]) -> None:
        """`is_in_log` tells if the log of a partition here (by its id) has, or may have, the mark of a load (by its
        number).
        """
        self._spool = spool
        self._table = table
        self._is_in_log = is_in_log

    async def run(self) -> None:
        """Remove unneeded files, until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            await self.collect()

    async def collect(self) -> None:
        """Look at all files once. Raises STORAGE_FAILED."""
        for number in self._spool.numbers():
            gone = [file.name for file in self._spool.files(number) if not self._is_needed(number, file)]
            if gone:
                await self._spool.remove(number, gone)
                log.info("files of a load were removed", extra={"load": number, "files": len(gone)})
            await asyncio.sleep(0)

    def _is_needed(self, number: int, file: LoadFile) -> bool:
        loads = self._table.state.loads
        load: Load | None = loads.rows.get(number)
        if load is None:
            return number >= loads.next_number or self._is_in_log(file.partition_id, number)
        match load.state:
            case LoadState.LOAD_STATE_STAGING:
                return True
            case LoadState.LOAD_STATE_COMMITTED:
                part = loads.parts[number].get(file.partition_id)
                return part is not None and part.name == file.name  # not of a failed attempt, or cut
            case LoadState.LOAD_STATE_ABORTED:
                return False
            case _:
                return self._is_in_log(file.partition_id, number)
