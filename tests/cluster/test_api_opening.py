"""The programs at the beginning of docs/api.md run, with other endpoints. The fourth program is a test, which runs in
`test_testing.py`.
"""

import subprocess
import sys

import pytest

import minka.duties
from minka.testing import LocalCluster
from tests.cluster.opening import PROGRAMS

ENDPOINTS = '["athens:7400", "byzantium:7400"]'


@pytest.mark.timeout(120)
def test_the_programs_of_the_opening_run() -> None:
    with LocalCluster(3) as cluster:
        admin, client, shard = (one.replace(ENDPOINTS, repr(list(cluster.endpoints))) for one in PROGRAMS[:3])
        assert run("-c", admin) == ""
        assert run("-c", admin) == ""
        assert run("-c", client) == "b'EWR to IAH'\n"
        assert run("-c", client) == "b'EWR to IAH'\nsomebody has the seat\n"
        hosting = subprocess.Popen([sys.executable, "-c", shard], stdout=subprocess.PIPE, text=True)
        try:
            assert hosting.stdout is not None
            assert hosting.stdout.readline() == "take [('bbc', b'https://www.bbc.co.uk/news/rss.xml')]\n"
            with minka.duties.Client(cluster.endpoints) as duties:
                duties.delete("feeds", "bbc")
            assert hosting.stdout.readline() == "release ['bbc']\n"
            hosting.terminate()
            assert hosting.communicate(timeout=30)[0] == ""
        finally:
            hosting.kill()


def run(*arguments: str) -> str:
    ended = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
