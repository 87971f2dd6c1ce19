"""The programs at the beginning of docs/api.md: programs of an admin, of a client and of a shard, and a test."""

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "api.md"
PROGRAMS: list[str] = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text("utf-8"), re.MULTILINE | re.DOTALL)
