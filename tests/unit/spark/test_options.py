"""The options of the data source."""

import pytest

from minka.errors import Code, MinkaError
from minka.spark.source_options import SourceOptions


def test_without_endpoints_the_data_source_finds_the_cluster_as_a_client_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINKA_ENDPOINTS", "athens:7400,byzantium:7400")
    assert SourceOptions.of({"keyspace": "flights"}).endpoints == ("athens:7400", "byzantium:7400")
    given = SourceOptions.of({"keyspace": "flights", "endpoints": "cyrene:7400, delphi:7400"})
    assert given.endpoints == ("cyrene:7400", "delphi:7400")


def test_a_keyspace_is_required() -> None:
    with pytest.raises(MinkaError, match="option 'keyspace' is missing") as refusal:
        SourceOptions.of({"endpoints": "athens:7400"})
    assert refusal.value.code is Code.INVALID_ARGUMENT
