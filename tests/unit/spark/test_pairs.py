"""The columns that are used as keys and as values."""

from typing import Any

import pytest

from minka.errors import Code, MinkaError
from minka.spark import PairColumns, export


@pytest.mark.parametrize("names", [{"key": "id"}, {"key": ("id",), "value": "v"}, {"key": 5}], ids=str)
def test_one_text_is_refused_where_a_list_of_columns_is_expected(names: dict[str, Any]) -> None:
    with pytest.raises(MinkaError, match=r"names of columns are wanted, not (str|int)") as refusal:
        PairColumns(**names)
    assert refusal.value.code is Code.INVALID_ARGUMENT


def test_one_text_is_refused_as_key_columns() -> None:
    nowhere: Any = None
    with pytest.raises(MinkaError, match="names of columns are wanted, not str"):
        export(nowhere, "flights", "/nowhere", endpoints=["127.0.0.1:1"], key_columns="id")
