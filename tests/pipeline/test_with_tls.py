"""A load, a verification and the data source work against a cluster with TLS."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from minka.admin.control import Control
from minka.spark import LoadOptions, PairColumns, load, verify
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from tests.cluster.certificates import make_certificates, section
from tests.cluster.cluster import CALM, wait_settled


def test_load_verify_and_read_with_tls(spark: SparkSession, tmp_path: Path) -> None:
    tls = make_certificates(tmp_path / "certificates")
    columns = PairColumns(("key",), ("value",))
    frame = spark.range(1000).selectExpr("concat('k', id) key", "cast(id as string) value")
    with LocalCluster(3, config=CALM | section(tls)) as cluster, Control(cluster.endpoints, tls=tls) as control:
        control.create_keyspace("secret", 2, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        wait_settled(control, live=3)
        load(spark, frame, "secret", LoadOptions(columns=columns), endpoints=cluster.endpoints, tls=tls, timeout=30)
        assert verify(spark, frame, "secret", columns, endpoints=cluster.endpoints, tls=tls).is_same
        options = {"endpoints": ",".join(cluster.endpoints), "keyspace": "secret"}
        paths = {"tlsCa": str(tls.ca), "tlsCert": str(tls.cert), "tlsKey": str(tls.key)}
        rows = spark.read.format("minka").options(**options, **paths).load()
        assert rows.count() == 1000
        with pytest.raises(Exception, match=r"UNREACHABLE: .*perhaps TLS is on at the other side only"):
            spark.read.format("minka").options(**options).load().count()
