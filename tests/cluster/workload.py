"""A writer that remembers what was acknowledged, and the check that nothing of it was lost or doubled."""

import random
import threading
from collections.abc import Sequence

from minka import Client
from minka.errors import MinkaError


class Workload:
    """Overwrites and deletes random keys in batches, on a thread of its own, until stopped.

    `possible[key]` holds every value that a read may find: the last one acknowledged, and those of later writes whose
    outcome is unknown. None stands for "no value". What is there at the start is taken as it is.
    """

    def __init__(self, endpoints: Sequence[str], keyspace: str, seed: int, keys: int = 400, batch: int = 20) -> None:
        self.acknowledged = 0
        self.failed = 0
        self.error: BaseException | None = None
        self._batch = batch
        self._random = random.Random(seed)
        self._client = Client(endpoints, keyspace=keyspace, timeout=2.0)
        names = [b"key-%d" % i for i in range(keys)]
        found = self._client.get_many(names)
        self.possible = {key: {found.get(key)} for key in names}
        self._seed = seed
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
        """End the writing; raises what the writer stumbled over."""
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the writer hangs"
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._write(self._random.sample(sorted(self.possible), self._batch))
        except BaseException as error:  # noqa: BLE001  # raised again in the test's own thread
            self.error = error

    def _write(self, keys: list[bytes]) -> None:
        self._version += 1
        deletes = self._random.random() < 0.2
        written = b"value-%d-%d" % (self._seed, self._version)
        value = None if deletes else written
        for key in keys:
            self.possible[key].add(value)
        try:
            if deletes:
                self._client.delete_many(keys)
            else:
                self._client.put_many(dict.fromkeys(keys, written))
        except MinkaError:
            self.failed += 1  # of a batch, each key may or may not have been written
        else:
            self.acknowledged += 1
            for key in keys:
                self.possible[key] = {value}

    def check(self) -> int:
        """Read every key back; returns how many have a value. The writer must have been stopped."""
        found = self._client.get_many(list(self.possible))
        wrong = {
            key: (found.get(key), allowed) for key, allowed in self.possible.items() if found.get(key) not in allowed
        }
        assert not wrong, f"{len(wrong)} keys are wrong: {dict(list(wrong.items())[:5])}"
        for key in self.possible:  # what is read now is what it is from here on
            self.possible[key] = {found.get(key)}
        return sum(value is not None for value in found.values())
