"""Rows of columns as keys and values (docs/formats.md). Keys sort as their columns' values do.

    client.put(encode_key(("EWR", date(2013, 1, 1), 1545)), encode_value({"dest": "IAH", "delay": 2.0}))
    client.scan(*prefix_range(("EWR", date(2013, 1, 1))))  # in a keyspace by ranges

Spark's jobs and the data source "minka" write and read the same formats (`minka.spark`).
"""

from minka.cluster.key_ranges import KeyRange
from minka.rows.integers import date_of, decimal_of, scaled, timestamp_of
from minka.rows.keys import KeyPart, Single, decode_key, encode_key, prefix_range
from minka.rows.values import decode_value, encode_value

__all__ = [
    "KeyPart",
    "KeyRange",
    "Single",
    "date_of",
    "decimal_of",
    "decode_key",
    "decode_value",
    "encode_key",
    "encode_value",
    "prefix_range",
    "scaled",
    "timestamp_of",
]
