"""The processes that work for a node end quietly with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from minkad.loads.cut import Cut
from minkad.loads.inspect import Inspect
from minkad.storage.scan_process import ScanRequest, encode_request


def requests(path: str) -> dict[str, bytes]:
    """For each module, a request that its process answers with an error."""
    scan = encode_request(ScanRequest(path, b"", b"", "rows"))
    return {
        "minkad.loads.inspect": msgspec.json.encode(Inspect(path)) + b"\n",
        "minkad.loads.cut": msgspec.json.encode(Cut([path], [], f"{path}.cut", 0, 0, 0, 0)) + b"\n",
        "minkad.storage.scan_process": len(scan).to_bytes(4, "big") + scan,
    }


MODULES = list(requests(""))


def started(module: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", module], stdin=-1, stdout=-1, stderr=-1)


@pytest.mark.parametrize("module", MODULES)
def test_a_process_whose_node_was_killed_says_nothing(tmp_path: Path, module: str) -> None:
    """The pipe of its answers has no reader any more."""
    with started(module) as process:
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, said = process.communicate(requests(str(tmp_path / "gone"))[module], timeout=30)
    assert (said, process.returncode) == (b"", 0)


@pytest.mark.parametrize("module", MODULES)
def test_ctrl_c_on_the_nodes_terminal_does_not_end_its_processes(tmp_path: Path, module: str) -> None:
    """The node may need them until it ends."""
    with started(module) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(2):
            process.stdin.write(requests(str(tmp_path / "gone"))[module])
            process.stdin.flush()
            assert os.read(process.stdout.fileno(), 1 << 16)
            process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert (said, process.returncode) == (b"", 0)
