"""docs/api.md matches the code, explains each public name, and has only examples that are Python."""

import ast
import builtins
import re
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import minka
from minka.spark.source_options import _NAMES

ROOT = Path(minka.__file__).parent.parent
TEXT = (ROOT / "docs" / "api.md").read_text("utf-8").partition("## Error codes")[0]
# Classes of other libraries. docs/api.md names them without an explanation.
ELSEWHERE = {
    *("DataFrame", "Path", "SparkSession"),
    *("AnalysisException", "PySparkException", "StreamingQueryException"),
}


def test_the_page_matches_the_code() -> None:
    command = [sys.executable, "tools/api_page.py", "--check"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_type_that_is_named_but_not_public_is_refused() -> None:
    code = (
        "import minka.rows, runpy; minka.rows.__all__.remove('KeyRange');"
        "runpy.run_path('tools/api_page.py', {}, '__main__')"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "not public, or not declared: minka.cluster.key_ranges.KeyRange, of prefix_range\n"


class Undeclared:
    told: int

    def __init__(self) -> None:
        self.told = 1
        self.untold = 2
        self._hidden = 3


def test_a_public_attribute_that_is_not_declared_is_refused() -> None:
    page = runpy.run_path(str(ROOT / "tools" / "api_page.py"))["_Page"]()
    assert list(page._own_fields("Undeclared", Undeclared)) == ["    told: int"]
    assert page._unlisted == {"the attribute untold": "Undeclared"}


def test_each_public_name_is_explained() -> None:
    entries = re.findall(r"^### (\S+)\n\n((?:.*\n)*?)(?=^##|\Z)", TEXT, re.MULTILINE)
    assert len(entries) > 100
    silent = [name for name, told in entries if not re.search(r"^[A-Z`]", told, re.MULTILINE)]
    assert silent == []


def test_each_class_that_the_text_names_is_on_the_page() -> None:
    known = {name.rpartition(".")[2] for name in re.findall(r"^### (\S+)$", TEXT, re.MULTILINE)} | ELSEWHERE
    named = re.findall(r"`(?:[a-z_]+\.)*([A-Z][a-z]\w+)(?=[`.(])", TEXT)
    assert [name for name in named if name not in known and not hasattr(builtins, name)] == []


def blocks() -> list[str]:
    """Return the page's examples and lists of fields. A block right after a name is its signature, and is left out."""
    found = re.findall(r"^(?!\*\*|###)(.+)\n\n((?: {4}.*\n|\n(?= {4}))+)", TEXT, re.MULTILINE)
    return [textwrap.dedent(block) for _, block in found] + re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)


def test_the_examples_are_python() -> None:
    found = blocks()
    assert len([one for one in found if "minka" in one]) >= 10
    for block in found:
        try:
            compile(block, "docs/api.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        except SyntaxError as error:
            pytest.fail(f"{error}:\n{block}")


@pytest.mark.parametrize("name", _NAMES)
def test_each_option_of_the_data_source_is_on_the_page(name: str) -> None:
    assert re.search(rf"^\| .*`{name}`", TEXT, re.MULTILINE)
