"""The two distributions are built from the checkout, and used outside of it. `minka-client` is enough for a program
that uses a cluster. If a program needs more, an error says what to install. `minka` adds the daemon and minkactl.
"""

import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import minka
from minka.admin.control import Control
from minka.testing import LocalCluster
from minka.v1.cluster_pb2 import HashFunction

ROOT = Path(minka.__file__).parent.parent
pytestmark = pytest.mark.timeout(180)

USE = """
import sys, minka, minka.admin, minka.duties
with minka.Client(sys.argv[1].split(","), keyspace="orders") as client:
    client.put("a", b"1")
    print(client.get("a"))
with minka.duties.Client(sys.argv[1].split(",")) as duties:
    print(duties.pallets())
"""
MORE = """
import minka
from minka.testing import LocalCluster
for use in (lambda: __import__("minka.spark"), lambda: __import__("minka.bulk.sst_files"), LocalCluster(1).start):
    try:
        use()
    except minka.MinkaError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By the name of a distribution: the folder with its unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    # Build in a copy: a build leaves files in its folder, and would put files that former builds left into the wheels.
    copy = folder / "checkout"
    for name in ("client", "minka", "minkactl", "minkad", "pyspark_minka"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "build"))
    for name in ("LICENSE", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, copy / name)
    for source in (copy / "client", copy):
        build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), str(source)]
        subprocess.run(build, cwd=folder, check=True)
    unpacked = {}
    for wheel in folder.glob("*.whl"):
        name = wheel.name.partition("-")[0].replace("_", "-")
        unpacked[name] = folder / name
        subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", folder / name, wheel], check=True)
    return unpacked


def packages_of(name: str, folder: Path) -> Path:
    """Make a folder with exactly the packages on which the distribution depends, except Minka's own."""
    site, wanted, done = Path(sysconfig.get_path("purelib")), [name], set[str]()
    while wanted:
        for line in requires(wanted.pop()) or ():
            need = Requirement(line)
            if need.name in done or (need.marker is not None and not need.marker.evaluate({"extra": ""})):
                continue
            done.add(need.name)
            wanted.append(need.name)
    folder.mkdir()
    for one in done - {"minka-client"}:
        for top in {file.parts[0] for file in distribution(one).files or () if file.parts[0] != ".."}:
            if not (folder / top).exists():
                (folder / top).symlink_to(site / top)
    return folder


def run(program: str, paths: list[Path], *arguments: str) -> str:
    """Run a program that can import only the standard library and these folders; returns its output."""
    start = f"import sys; sys.path += {[str(path) for path in paths]!r}\n{program}"
    command = [sys.executable, "-I", "-S", "-c", start, *arguments]
    ended = subprocess.run(command, cwd=paths[0], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_program_needs_only_the_client(wheels: dict[str, Path], tmp_path: Path) -> None:
    assert not {"minkad", "minkactl"} & {path.name for path in wheels["minka-client"].iterdir()}
    paths = [wheels["minka-client"], packages_of("minka-client", tmp_path / "packages")]
    assert not {"rocksdict", "uvloop", "aiohttp", "rich", "click"} & {path.name for path in paths[1].iterdir()}
    with LocalCluster(1) as cluster, Control(cluster.endpoints) as control:
        control.create_keyspace("orders", 1, HashFunction.HASH_FUNCTION_MURMUR3)
        assert run(USE, paths, ",".join(cluster.endpoints)) == "b'1'\n[]\n"


@pytest.mark.parametrize("name", ["minka", "minka-client"])
def test_a_wheel_has_the_license(wheels: dict[str, Path], name: str) -> None:
    (license_text,) = wheels[name].glob("*.dist-info/licenses/LICENSE")
    assert license_text.read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_client_says_what_to_install_for_more(wheels: dict[str, Path], tmp_path: Path) -> None:
    said = run(MORE, [wheels["minka-client"], packages_of("minka-client", tmp_path / "packages")]).splitlines()
    assert [line.partition(":")[0] for line in said] == ["SPARK_MISSING", "PACKAGE_MISSING", "PACKAGE_MISSING"]
    assert "minka-client[load]" in said[1]
    assert "pip install minka" in said[2]


def test_both_together_have_the_daemon_and_the_tool(wheels: dict[str, Path], tmp_path: Path) -> None:
    paths = [wheels["minka"], wheels["minka-client"], packages_of("minka", tmp_path / "packages")]
    assert "minkad" in run("from minkad.__main__ import main; sys.argv[1:] = ['--help']; main()", paths)
    assert "playground" in run("from minkactl.__main__ import main; sys.argv[1:] = ['--help']; main()", paths)


def test_the_distributions_have_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert f"minka-client=={minka.__version__}" in project["dependencies"]
