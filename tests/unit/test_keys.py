"""Keys as minkactl shows them in tables, and as people give them in files."""

from pathlib import Path

import pytest
from click import BadParameter

from minka.cluster.key_ranges import readable
from minka.rows import encode_key
from minkactl.keys import columns_text, parse_keys


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (encode_key(("2013", "1", "UA")), "2013, 1, UA"),
        (encode_key((2013, None, 1.5, True)), "2013, None, 1.5, True"),
        (b"plain", "plain"),
        (b"a,b", "0x612c62"),
        (b"\xff\x00", "0xff00"),
        (encode_key(("a\nb",)), "0x02610a6200"),
        (encode_key(("cut off",))[:-1], "0x02637574206f6666"),
        (b"", '""'),
    ],
)
def test_keys_of_columns_are_shown_as_their_values(key: bytes, shown: str) -> None:
    assert columns_text(readable(key)) == shown


@pytest.mark.parametrize("content", [b"", b"\n", b"\n\n", b" \n\t\r\n"])
def test_a_file_without_keys_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(BadParameter, match=f"the file {path} has no keys"):
        parse_keys(f"@{path}")


def test_the_keys_of_a_file_are_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"b\n d \r\n0x6566\n")
    assert parse_keys(f"@{path}") == [b"b", b" d ", b"ef"]
