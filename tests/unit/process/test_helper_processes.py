"""The processes that work for a node end quietly with it."""

import signal
import subprocess
import sys
import textwrap
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
    """The pipe of its answers no longer has a reader."""
    with started(module) as process:
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, said = process.communicate(requests(str(tmp_path / "gone"))[module], timeout=30)
    assert (said, process.returncode) == (b"", 0)


NODE = textwrap.dedent("""
    import asyncio, os, signal, sys
    from minkad.loads.inspect import Content, Inspect
    from minkad.loads.worker import Worker
    from minkad.storage.scan_process import ScanRequest
    from minkad.storage.scanner import Scanner

    async def main(path, end):
        signals = []
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, signals.append, "SIGINT")
        worker, scanner = Worker("minkad.loads.inspect"), Scanner()

        async def scan():
            async for _ in scanner.scan(ScanRequest(path, b"", b"", "rows")):
                pass

        answers = [asyncio.ensure_future(asking) for asking in (worker.ask(Inspect(path + ".sst"), Content), scan())]
        while not all(answer.done() for answer in answers):
            os.killpg(0, signal.SIGINT)
            await asyncio.sleep(0.01)
        print(signals[0], *(answer.exception() for answer in answers), sep="\\n", flush=True)
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        await worker.close()
        await scanner.close()

    asyncio.run(main(*sys.argv[1:]))
""")


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_ctrl_c_on_the_nodes_terminal_does_not_end_its_processes(tmp_path: Path, end: str) -> None:
    """The node may need them until it ends. The test waits for the end of these processes, too: they have the pipe of
    standard error.
    """
    command = [sys.executable, "-c", NODE, str(tmp_path / "gone"), end]
    node = subprocess.run(command, capture_output=True, text=True, timeout=60, start_new_session=True, check=False)
    assert (node.stderr, node.returncode) == ("", 0 if end == "stopped" else -signal.SIGKILL)
    signals, *errors = node.stdout.splitlines()
    assert signals == "SIGINT"
    assert len(errors) == 2
    assert all("No such file" in error for error in errors), "the processes have answered"
