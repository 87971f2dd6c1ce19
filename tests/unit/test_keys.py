"""Keys as minkactl shows them in tables."""

import pytest

from minka.cluster.key_ranges import readable
from minka.rows import encode_key
from minkactl.keys import columns_text


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
