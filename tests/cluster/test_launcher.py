"""The process that starts a local cluster's nodes: from its second start on it forks them off itself."""

import os
import signal
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError
from minka.testing import local_cluster
from minka.testing.launcher import Launcher
from minka.testing.local_cluster import LocalCluster
from tests.cluster.cluster import QUICK


def command_of(cluster: LocalCluster) -> str:
    return Path(f"/proc/{cluster.node('athens').pid}/cmdline").read_text()


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Launcher:
    """A new one, which has started nothing yet."""
    made = Launcher()
    monkeypatch.setattr(local_cluster, "launcher", lambda index: made)
    return made


def test_a_forked_node_is_like_any_other(launcher: Launcher) -> None:
    with LocalCluster(["athens"], config=QUICK) as cluster:
        node = cluster.node("athens")
        assert "\0minkad\0" in command_of(cluster)
        cluster.kill("athens")
        assert node.ended() == "was ended by SIGKILL"
        cluster.restart("athens")
        assert "serve(" in command_of(cluster), "it was forked"
        cluster.signal("athens", signal.SIGSTOP)
        cluster.resume("athens")
        cluster.terminate("athens")
        assert node.ended() == "ended with status 0"
        node.config = {"membership": {"clearance_ms": "soon"}}
        with pytest.raises(MinkaError, match="athens ended with status 2"):
            cluster.restart("athens")


def test_variables_that_count_when_minkad_is_imported_make_a_new_process(launcher: Launcher, tmp_path: Path) -> None:
    with LocalCluster(["athens"], config=QUICK) as cluster:
        cluster.restart("athens", env={"MINKA_FAILPOINTS_FILE": str(tmp_path / "none")})
        assert "\0minkad\0" in command_of(cluster)


def test_a_node_that_has_just_ended_is_not_paused(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalCluster(["athens", "byzantium"], config=QUICK) as cluster:
        process = cluster.node("athens").process
        assert process is not None
        ended = os.pidfd_open(process.pid)
        kill = os.kill

        def end_before(pid: int, number: int) -> None:
            kill(pid, signal.SIGKILL)
            wait([ended])
            kill(pid, number)

        monkeypatch.setattr(os, "kill", end_before)
        with pytest.raises(MinkaError, match="athens is not running: it was ended by SIGKILL"):
            cluster.pause("athens")
        monkeypatch.setattr(os, "kill", kill)
        os.close(ended)
        assert cluster.node("byzantium").running
        cluster.restart("athens")


def test_a_request_that_fails_leaves_the_other_nodes_alone(launcher: Launcher) -> None:
    with LocalCluster(["athens"], config=QUICK) as cluster:
        with pytest.raises(MinkaError, match="ChildProcessError"):
            launcher.ask("status", os.getpid())
        assert cluster.node("athens").running


def test_nodes_end_with_the_launcher(launcher: Launcher) -> None:
    with LocalCluster(["athens"], config=QUICK) as cluster:
        node = cluster.node("athens")
        assert node.process is not None
        os.kill(int(Path(f"/proc/{node.pid}/stat").read_text().split()[3]), signal.SIGKILL)  # its parent
        assert node.process.wait(10) == -signal.SIGKILL
        with pytest.raises(MinkaError) as failed:
            cluster.restart("athens")
        assert failed.value.code is Code.PLAYGROUND_FAILED
