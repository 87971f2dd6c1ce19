"""Tests of your own program against a real cluster: `LocalCluster`, and `minka.testing.fixtures` for pytest.

The cluster's nodes are processes of `minkad` on loopback addresses, so the whole distribution `minka` must be
installed, not only `minka-client`.
"""

from minka.testing.held_duties import held
from minka.testing.local_cluster import LocalCluster, LocalNode

__all__ = ["LocalCluster", "LocalNode", "held"]
