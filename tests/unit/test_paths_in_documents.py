"""docs/architecture.md names modules that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
NAMED = sorted(set(re.findall(r"`([a-z_]+(?:/[a-z_0-9]+)*\.(?:py|proto))`", TEXT)))
FILES = [
    str(file) for room in ("minka", "minkad", "minkactl", "protos", "tests") for file in (ROOT / room).rglob("*.*")
]
FILES.append(str(ROOT / "setup.py"))


def test_the_document_names_modules() -> None:
    assert len(NAMED) > 50


@pytest.mark.parametrize("name", NAMED)
def test_a_module_that_the_document_names_exists(name: str) -> None:
    assert any(file.endswith(f"/{name}") for file in FILES), "write its path from the package on, or its new name"
