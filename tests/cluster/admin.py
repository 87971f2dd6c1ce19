"""An admin of a cluster under test: a thread that begins one operation after another until its `with` block ends."""

import contextlib
import random
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from minka.admin.control import Control
from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Operation, OperationState
from tests.cluster.nemesis import KEYSPACE, NODES, RANGES, REPLICAS, Lab


class Admin:
    """Begins one operation after another, and ignores refusals, which are normal while nodes come and go."""

    def __init__(self, lab: Lab, rng: random.Random) -> None:
        self.started = 0
        self.succeeded = 0
        self.control = Control(lab.cluster.endpoints, timeout=2.0)
        self.lab = lab
        self.rng = rng
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=type(self).__name__)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self.control.close()
        if self._error is not None:
            raise self._error

    def begin(self) -> Operation | None:
        """Begin the next operation; returns None if there is nothing to do this time. Raises MinkaError."""
        raise NotImplementedError

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                # Operations are refused if there is no controller, the table changes, or too few nodes are LIVE.
                with contextlib.suppress(MinkaError):
                    operation = self.begin()
                    if operation is not None:
                        self.started += 1
                        self._wait(operation)
                self._stop.wait(0.05)
        except BaseException as error:  # noqa: BLE001  # raised again in the test's own thread
            self._error = error

    def _wait(self, operation: Operation) -> None:
        while operation.state == OperationState.OPERATION_STATE_RUNNING and not self._stop.wait(0.05):
            try:
                operation = self.control.operations([operation.id]).operations[0]
            except MinkaError as error:
                if error.code is Code.UNKNOWN_OPERATION:
                    raise
        self.succeeded += operation.state == OperationState.OPERATION_STATE_SUCCEEDED


class Reassigner(Admin):
    """Moves replicas back and forth."""

    def begin(self) -> Operation | None:
        """Spread KEYSPACE over some of the nodes."""
        to = self.rng.sample(NODES, self.rng.randint(max(2, REPLICAS), len(NODES)))
        plan = self.control.plan_reassign(to, [KEYSPACE])
        return self.control.apply_plan(plan, "nemesis") if plan.moves else None


class Divider(Admin):
    """Splits and merges the partitions of RANGES at the keys that clients use."""

    def __init__(self, lab: Lab, rng: random.Random, keys: Sequence[bytes]) -> None:
        super().__init__(lab, rng)
        self._keys = sorted(keys)[1:]

    def begin(self) -> Operation | None:
        """Merge partitions at one to three of their bounds, or split partitions at two of the clients' keys."""
        bounds = [row.start_key for row in self.lab.rows(RANGES) if row.start_key]
        if bounds and self.rng.random() < len(bounds) / len(self._keys):
            return self.control.merge(
                RANGES, self.rng.sample(bounds, self.rng.randint(1, min(3, len(bounds)))), "nemesis"
            )
        return self.control.split(RANGES, self.rng.sample(self._keys, 2), "nemesis")
