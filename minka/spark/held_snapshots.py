"""Keeps snapshots open while a job needs them."""

from collections.abc import Sequence
from contextlib import suppress
from threading import Event, Thread
from types import TracebackType
from typing import Final, Self

from minka.bulk.snapshot_reads import SnapshotClient
from minka.errors import MinkaError
from minka.tls import Tls
from minka.v1.snapshots_pb2 import PartitionSnapshot

_RENEW_S: Final = 200.0  # seconds between renewals; nodes drop a snapshot that nobody has used for 15 minutes


class HeldSnapshots:
    """Holds snapshots open: a thread renews them every `renew_s` seconds. The end of the body of `with` releases all
    snapshots that are still held. Several threads may use this. `endpoints` and `tls` are for `SnapshotClient`.
    """

    def __init__(self, endpoints: Sequence[str], *, tls: Tls | None = None, renew_s: float = _RENEW_S) -> None:
        self._endpoints: Final = tuple(endpoints)
        self._tls: Final = tls
        self._renew_s: Final = renew_s
        self._held: Final[dict[str, PartitionSnapshot]] = {}
        self._over: Final = Event()
        self._thread: Final = Thread(target=self._renew, name="renewal of snapshots", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        if not self._held:
            return
        with self._client() as client, suppress(MinkaError):
            client.refresh()
            for snapshot in list(self._held.values()):
                self.release(client, snapshot)

    def hold(self, snapshot: PartitionSnapshot) -> None:
        """Keep the snapshot open until it is released."""
        if snapshot.snapshot_id:
            self._held[snapshot.snapshot_id] = snapshot

    def release(self, client: SnapshotClient, snapshot: PartitionSnapshot) -> None:
        """Stop renewing the snapshot, and let the client tell the nodes that nobody needs it any longer."""
        self._held.pop(snapshot.snapshot_id, None)
        client.release(snapshot)

    def _renew(self) -> None:
        while not self._over.wait(self._renew_s):
            with self._client() as client, suppress(MinkaError):
                client.refresh()
                for snapshot in list(self._held.values()):
                    if self._over.is_set():
                        return
                    if snapshot.snapshot_id in self._held:  # it may have been released meanwhile
                        client.renew(snapshot)

    def _client(self) -> SnapshotClient:
        return SnapshotClient(self._endpoints, tls=self._tls)
