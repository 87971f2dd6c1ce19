"""Daemons run the hot modules in the form that is tested: compiled by mypyc if MINKA_COMPILED=1, else plain Python."""

import ast
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
IS_COMPILED = os.environ.get("MINKA_COMPILED") == "1"


def compiled_modules() -> list[str]:
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMPILED":
            return [path.removesuffix(".py").replace("/", ".") for path in ast.literal_eval(node.value)]
    raise AssertionError("setup.py names no modules")


def test_daemons_use_the_form_that_is_tested(tmp_path: Path) -> None:
    modules = compiled_modules()
    say = f"import importlib\nfor one in {modules!r}: print(importlib.import_module(one).__file__)"
    said = subprocess.run([sys.executable, "-c", say], cwd=tmp_path, capture_output=True, text=True, check=True)
    files = said.stdout.split()
    assert len(files) == len(modules)
    assert [file for file in files if not file.endswith(".so" if IS_COMPILED else ".py")] == []
    assert all(ROOT in Path(file).parents for file in files), "another tree's modules"
