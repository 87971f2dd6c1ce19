"""The programs at the beginning of docs/api.md: an admin's, a client's, a shard's, and a test."""

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "api.md"
PROGRAMS: list[str] = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text("utf-8"), re.MULTILINE | re.DOTALL)
