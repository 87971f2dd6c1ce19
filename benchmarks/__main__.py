"""Runs all benchmarks, one after the other."""

import sys
from typing import Final

from benchmarks import (
    duties,
    failover,
    keyspace,
    kv,
    move,
    pipeline,
    placement,
    raft,
    raft_restart,
    ranges,
    ranges_load,
    reassign,
    redis_port,
    scale,
    sizes,
    status,
)
from benchmarks.measure import measure, parse
from minka.errors import MinkaError

ALL: Final = (
    ("raft", raft.run),
    ("raft_restart", raft_restart.run),
    ("keyspace", keyspace.run),
    ("kv", kv.run),
    ("redis_port", redis_port.run),
    ("reassign", reassign.run),
    ("move", move.run),
    ("failover", failover.run),
    ("status", status.run),
    ("ranges", ranges.run),
    ("ranges_load", ranges_load.run),
    ("sizes", sizes.run),
    ("placement", placement.run),
    ("scale", scale.run),
    ("duties", duties.run),
    ("pipeline", pipeline.run),
)


def main() -> None:
    """Run all benchmarks, even after one has failed. The exit status is 1 if one has failed."""
    options = parse(
        "Compare Minka's throughput with that of etcd and Redis. To run one benchmark: python -m benchmarks.kv",
        sys.argv[1:],
    )
    failed = []
    for name, run in ALL:
        try:
            measure(name, options, run)
        except (OSError, RuntimeError, MinkaError, ExceptionGroup, AssertionError) as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
