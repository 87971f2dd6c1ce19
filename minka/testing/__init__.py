"""Tests of your own program against a real cluster: `LocalCluster`, and `minka.testing.fixtures` for pytest.

The cluster's nodes are processes of `minkad` on loopback addresses, so the whole distribution has to be installed, not
`minka-client` alone.
"""

from minka.testing.local_cluster import LocalCluster, LocalNode

__all__ = ["LocalCluster", "LocalNode"]
