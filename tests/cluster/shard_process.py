"""A process that hosts duties, and writes what it does to a file: `python -m tests.cluster.shard_process FILE JSON`.

The process writes a line for each call of the delegate, with the time of the call. Regularly, it also asks all duties
`Duty.is_held`, and writes a line with the duties for which it may act, and the times before and after the questions.
All processes of a machine share the clock of these times.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minka.duties import Capacity, Delegate, Duty, run_shard
from minka.tls import Tls

SAMPLE_S = 0.01
BLOCKED_S = 2.5
POISON = b"poison"


class Recorder(Delegate):
    """A delegate that attaches all duties that it gets, and records each call."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._lock = threading.Lock()
        self._duties: dict[int, Duty] = {}
        threading.Thread(target=self._sample, daemon=True).start()

    def _write(self, **line: object) -> None:
        with self._lock:
            self._file.write(json.dumps(line) + "\n")

    def _sample(self) -> None:
        while True:
            before = now()
            held = [[f"{duty.pallet}/{duty.id}", duty.epoch] for duty in list(self._duties.values()) if duty.is_held()]
            self._write(before=before, after=now(), held=held)
            time.sleep(SAMPLE_S)

    def attach(self, duties: Sequence[Duty]) -> None:
        self._duties.update((duty.number, duty) for duty in duties)
        self._called("attach", duties)

    def detach(self, duties: Sequence[Duty]) -> None:
        for duty in duties:
            del self._duties[duty.number]
        self._called("detach", duties)

    def update(self, duties: Sequence[Duty]) -> None:
        self._duties.update((duty.number, duty) for duty in duties)
        self._called("update", duties)

    def _called(self, method: str, duties: Sequence[Duty]) -> None:
        some = [[f"{duty.pallet}/{duty.id}", duty.epoch, duty.payload.decode()] for duty in duties]
        self._write(before=now(), call=method, duties=some)


class Mortal(Recorder):
    """A delegate that kills its process when it gets a duty with the payload POISON, as if the memory had run out."""

    def attach(self, duties: Sequence[Duty]) -> None:
        if any(duty.payload == POISON for duty in duties):
            os.kill(os.getpid(), signal.SIGKILL)
        super().attach(duties)


class Stuck(Recorder):
    """A delegate that never finishes releasing a duty."""

    def detach(self, duties: Sequence[Duty]) -> None:
        threading.Event().wait()


class Blocking(Recorder):
    """A delegate that blocks its event loop for longer than the clearance."""

    async def attach(self, duties: Sequence[Duty]) -> None:  # type: ignore[override]  # a coroutine
        time.sleep(BLOCKED_S)  # noqa: ASYNC251 - the test needs a blocked loop
        super().attach(duties)


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def main(path: str, arguments: str) -> None:
    settings: dict[str, Any] = json.loads(arguments)
    pallets = {pallet: Capacity(capacity) for pallet, capacity in settings.pop("pallets").items()}
    if "tls" in settings:
        settings["tls"] = Tls(*map(Path, settings["tls"]))
    delegates = (Recorder, Mortal, Stuck, Blocking)
    delegate = {one.__name__: one for one in delegates}[settings.pop("delegate", "Recorder")]
    run_shard(delegate(Path(path)), pallets, **settings)


if __name__ == "__main__":
    main(*sys.argv[1:])
