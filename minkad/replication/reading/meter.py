"""The load of a node's replicas, as rates."""

import time
from collections.abc import Callable, Mapping
from typing import Final

from minkad.replication.applying.hosted_replica import HostedReplica

_HALF_LIFE_S: Final = 1.0  # of the smoothed rates


class Meter:
    """The rates of all replicas of a node, smoothed."""

    def __init__(
        self,
        replicas: Mapping[int, HostedReplica],
        used: set[int],
        clock: Callable[[], float],
        cpu_time: Callable[[], float] = time.process_time,
    ) -> None:
        """`used`: see `Load`. `cpu_time` returns the processor seconds that the process has used."""
        self.ops = 0.0  # operations a second, of all replicas
        self.processors = 0.0  # the number of processors that the process keeps busy
        self._replicas = replicas
        self._used = used
        self._clock = clock
        self._cpu_time = cpu_time
        self.at, self._cpu_at = clock(), cpu_time()  # the last tick

    def tick(self) -> list[HostedReplica]:
        """Bring the rates up to date. Returns the replicas used lately, including those whose rate has just
        become 0.
        """
        now, cpu = self._clock(), self._cpu_time()
        seconds = max(1e-3, now - self.at)
        kept = 0.5 ** (seconds / _HALF_LIFE_S)
        used = [replica for id_ in sorted(self._used) if (replica := self._replicas.get(id_)) is not None]
        served = sum(replica.load.served for replica in used)
        self.ops = self.ops * kept + served / seconds * (1 - kept)
        self.processors = self.processors * kept + (cpu - self._cpu_at) / seconds * (1 - kept)
        for replica in used:
            load = replica.load
            load.last = load.served / seconds
            ops = load.ops * kept + load.last * (1 - kept)
            load.ops = ops if load.served or ops >= 0.5 else 0.0
            # The only request was for no key, or the used replica has been replaced.
            load.cpu_percent = 100 * self.processors * load.ops / self.ops if self.ops else 0.0
            load.served = 0
        self.at, self._cpu_at = now, cpu
        self._used.clear()
        self._used.update(replica.id for replica in used if replica.load.ops)
        return used
