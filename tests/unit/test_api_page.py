"""docs/api.md is what the code says, and each public name is explained there."""

import re
import subprocess
import sys
from pathlib import Path

import minka

ROOT = Path(minka.__file__).parent.parent


def test_the_page_is_what_the_code_says() -> None:
    command = [sys.executable, "tools/api_page.py", "--check"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_each_name_is_explained() -> None:
    text = (ROOT / "docs" / "api.md").read_text("utf-8").partition("## Error codes")[0]
    entries = re.findall(r"^### (\S+)\n\n((?:.*\n)*?)(?=^##|\Z)", text, re.MULTILINE)
    assert len(entries) > 100
    silent = [name for name, told in entries if not re.search(r"^[A-Z`]", told, re.MULTILINE)]
    assert silent == []
