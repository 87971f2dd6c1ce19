"""A writer that remembers its acknowledged writes, and checks at the end that none of them was lost."""

import random
import threading
import time
from collections.abc import Iterable, Sequence

from minka import Client
from minka.engine.batch_error import BatchError
from minka.errors import Code

# After these codes, the write may have been done, or may still be done. After any other code, it is never done.
OPEN = frozenset({Code.OUTCOME_UNKNOWN, Code.DEADLINE_EXCEEDED})


class Workload:
    """Overwrites and deletes random keys in batches, on its own thread, until `stop`.

    A read may find the last acknowledged value, or the value of a write with an unknown outcome, since such a write may
    take effect at any later time. None stands for a missing value. The values at the start count as acknowledged. A
    test in which no request may fail chooses a `timeout` (seconds) that is long enough on a busy machine.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        keyspace: str,
        seed: int,
        keys: int = 400,
        batch: int = 20,
        timeout: float = 2.0,
    ) -> None:
        self.acknowledged = 0
        self.failures: list[str] = []  # why writes failed, or have unknown outcomes
        self.error: BaseException | None = None
        self._batch = batch
        self._random = random.Random(seed)
        self._client = Client(endpoints, keyspace=keyspace, timeout=timeout)
        names = [b"key-%d" % i for i in range(keys)]
        found = self._client.get_many(names)
        self.last: dict[bytes, bytes | None] = {key: found.get(key) for key in names}
        self.unknown: dict[bytes, set[bytes | None]] = {key: set() for key in names}
        self._seed = seed
        self._history: dict[bytes, list[tuple[float, bytes | None, str]]] = {key: [] for key in names}
        self._stop = threading.Event()
        self._version = 0
        self._thread = threading.Thread(target=self._run, name="workload")

    def __enter__(self) -> "Workload":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._client.close()

    def stop(self) -> None:
        """Stop writing. If the writer met an unexpected error, raises this error."""
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the writer hangs"
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._write(self._random.sample(sorted(self.last), self._batch))
        except BaseException as error:  # noqa: BLE001  # raised again in the test's own thread
            self.error = error

    def _write(self, keys: list[bytes]) -> None:
        self._version += 1
        deletes = self._random.random() < 0.2
        written = b"value-%d-%d" % (self._seed, self._version)
        value = None if deletes else written
        acknowledged = set(keys)
        try:
            if deletes:
                self._client.delete_many(keys)
            else:
                self._client.put_many(dict.fromkeys(keys, written))
        except BatchError as error:
            for failure in error.failures:
                acknowledged.difference_update(failure.keys)
                self.failures.append(str(failure.error))
                self._note(failure.keys, value, self.failures[-1])
                if failure.error.code in OPEN:
                    for key in failure.keys:
                        self.unknown[key].add(value)
        self.acknowledged += bool(acknowledged)
        self._note(acknowledged, value, "acknowledged")
        self.last.update(dict.fromkeys(acknowledged, value))

    def _note(self, keys: Iterable[bytes], value: bytes | None, outcome: str) -> None:
        for key in keys:
            self._history[key].append((time.time(), value, outcome))

    def check(self) -> int:
        """Read all keys, and check their values; returns the number of keys that have one. Call `stop` before."""
        found = self._client.get_many(list(self.last))
        wrong = {
            key: (found.get(key), value, self.unknown[key])
            for key, value in self.last.items()
            if found.get(key) != value and found.get(key) not in self.unknown[key]
        }
        stories = [f"{key!r}: {wrong[key]} after {self._history[key][-4:]}" for key in list(wrong)[:3]]
        assert not wrong, f"{len(wrong)} keys are wrong: {'; '.join(stories)}"
        return sum(value is not None for value in found.values())
