"""The errors of the Redis port are those in docs/redis.md."""

import re
from pathlib import Path

import minkad.data_port.resp
from minkad.data_port.resp.refusals import _CODES

ROOT = Path(__file__).parents[4]
WORD = re.compile(r'RespError\(\s*f?"([A-Z]+) |no_keyspace\([^"\n]*"([A-Z]+)"')


def test_the_document_explains_the_first_word_of_each_error() -> None:
    (folder,) = minkad.data_port.resp.__path__
    code = "".join(path.read_text() for path in Path(folder).glob("*.py"))
    words = {first or second for first, second in WORD.findall(code)} | set(_CODES.values())
    assert {"ERR", "BUSY", "MOVED", "WRONGPASS", "LOADING"} <= words
    document = (ROOT / "docs" / "redis.md").read_text()
    errors = document[document.index("## Errors") : document.index("## Redis's own tests")]
    assert words == {word.split()[0] for word in re.findall(r"^\| `([^`]+)`", errors, re.MULTILINE)}
