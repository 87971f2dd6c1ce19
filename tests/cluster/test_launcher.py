"""The process that starts a local cluster's nodes: from its second start on it forks them off itself."""

import os
import signal
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


def test_nodes_end_with_the_launcher(launcher: Launcher) -> None:
    with LocalCluster(["athens"], config=QUICK) as cluster:
        node = cluster.node("athens")
        assert node.process is not None
        os.kill(int(Path(f"/proc/{node.pid}/stat").read_text().split()[3]), signal.SIGKILL)  # its parent
        assert node.process.wait(10) == -signal.SIGKILL
        with pytest.raises(MinkaError) as failed:
            cluster.restart("athens")
        assert failed.value.code is Code.PLAYGROUND_FAILED
