"""What `LocalCluster` refuses before it starts anything."""

from pathlib import Path
from typing import Any

import pytest

from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster


@pytest.mark.parametrize("nodes", ["athens", b"athens", 1.5, None])
def test_a_name_alone_is_not_names_of_nodes(tmp_path: Path, nodes: Any) -> None:
    with pytest.raises(MinkaError, match="a number of nodes, or their names, are wanted, not") as refusal:
        LocalCluster(nodes, tmp_path)
    assert refusal.value.code is Code.INVALID_ARGUMENT
    assert list(tmp_path.iterdir()) == []
