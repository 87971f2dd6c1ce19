"""minkad.core decides and applies without I/O, clock or randomness.

The linter forbids importing modules that do such things. This test permits only listed modules, and checks builtins.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

CORE = Path(__file__).parents[2] / "minkad" / "core"

ALLOWED_STDLIB = {
    "abc",
    "bisect",
    "collections",
    "contextlib",
    "copy",
    "dataclasses",
    "decimal",
    "enum",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "json",
    "math",
    "operator",
    "re",
    "statistics",
    "string",
    "struct",
    "types",
    "typing",
    "zlib",
}
ALLOWED_PREFIXES = (
    "google.protobuf",
    "minka.errors",
    "minka.cluster.hashing",
    "minka.cluster.in_sync",
    "minka.wire.key_operations",
    "minka.cluster.plan_digest",
    "minka.cluster.key_ranges",
    "minka.cluster.name_rules",
    "minka.wire.stored_values",
    "minka.wire.kv_frames",
    "minkad.core",
    "msgspec",
)
FORBIDDEN_CALLS = {"open", "input", "print", "exec", "eval", "__import__", "breakpoint", "hash", "id"}


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if node.level:
        return ["minkad.core"]
    # Code imports whole modules from these packages: `from minka import errors` imports the module minka.errors.
    if node.module in {"minka", "minkad", "minka.v1"}:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [node.module or ""]


def _is_allowed(module: str) -> bool:
    if module.partition(".")[0] in ALLOWED_STDLIB:
        return True
    if module.startswith("minka.v1."):
        return module.split(".")[2].endswith("_pb2")
    return any(module == prefix or module.startswith(prefix + ".") for prefix in ALLOWED_PREFIXES)


def impurities(source: str) -> Iterator[str]:
    """Yield `line: text` for each import that isn't allowed, and each call with input, output or other effects."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import() | ast.ImportFrom():
                for module in _modules(node):
                    if not _is_allowed(module):
                        yield f"{node.lineno}: imports {module}"
            case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
                yield f"{node.lineno}: calls {name}"
            case ast.AsyncFunctionDef() | ast.Await():
                yield f"{node.lineno}: is asynchronous"


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(CORE)))
def test_core_is_pure(path: Path) -> None:
    assert list(impurities(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from asyncio import run",
        "import os.path",
        "from minka import Client",
        "import minka",
        "from minka.v1 import coordinator_pb2_grpc",
        "from minkad.storage import log",
        "import minkad.corelike",
        "def f():\n    import random",
        "open('x')",
        "hash('differs between processes')",
        "async def f(): pass",
    ],
)
def test_impure_code_is_found(source: str) -> None:
    assert len(list(impurities(source))) == 1


def test_pure_code_is_accepted() -> None:
    source = "from minka.errors import Code\nfrom minka.v1 import records_pb2\nfrom . import tables\nimport heapq\n"
    assert list(impurities(source)) == []
