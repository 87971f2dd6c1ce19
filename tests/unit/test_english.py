"""The rules of English in CONTRIBUTING.md ("Words"), and in the glossary ("Words that we avoid"), that a machine can
check: files, with the names in them, are searched for phrases that need a second reading.
"""

import re
from pathlib import Path

import pytest

import minka

ROOT = Path(minka.__file__).parent.parent
_FINE = "longer|more than|less than|fewer than|different|better|worse"
PHRASES = {
    r"\bso many\b": 'say "at most N", or name the number',
    r"\bby (itself|themselves)\b": '"automatically", or "alone"',
    rf"(?<!there )\b(is|are|was|were) no (?!{_FINE})": '"isn\'t a …"',
    r"\bno more than so\b": '"at most N"',
    r"\banew\b": '"again"',
    r"\bany ?more\b": '"no longer"',
    r"\bof (its|their) own accord\b": '"automatically"',
}
GENERATED = "minka/v1"


def prose() -> list[Path]:
    """The files with text that people write: code, docs and protos."""
    found = [*ROOT.glob("*.md"), *(path for kind in ("py", "md", "proto") for path in ROOT.glob(f"*/**/*.{kind}"))]
    names = ((path, path.relative_to(ROOT).as_posix()) for path in found)
    left_out = tuple(f"{folder}/" for folder in (GENERATED, ".venv", "build"))
    return sorted(path for path, name in names if not name.startswith(left_out))


@pytest.mark.parametrize("phrase", PHRASES)
def test_no_phrase_needs_a_second_reading(phrase: str) -> None:
    pattern = re.compile(phrase, re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in prose()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if pattern.search(line.replace("_", " ")) and '| "' not in line  # rows of tables in Markdown quote them
    ]
    assert found == [], PHRASES[phrase]
