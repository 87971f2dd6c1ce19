"""The kinds of operations, by the field of `Operation.kind`."""

from collections.abc import Mapping
from typing import Final

from minka.v1.cluster_pb2 import Operation
from minkad.core.controller.drains import Drains
from minkad.core.controller.merges import Merges
from minkad.core.controller.operation_kind import OperationKind
from minkad.core.controller.preferred import Elections
from minkad.core.controller.splits import Splits
from minkad.core.duties.control.duty_rebalance import Rebalances

OPERATION_KINDS: Final[Mapping[str, OperationKind]] = {
    "reassign": OperationKind(),  # it consists of its migrations alone
    "elect_leaders": Elections(),
    "drain": Drains(),
    "split": Splits(),
    "merge": Merges(),
    "rebalance": Rebalances(),
}


def kind_of(operation: Operation) -> OperationKind:
    """The operation's kind, which defines its work besides its migrations."""
    name = operation.WhichOneof("kind")
    assert name is not None, operation
    return OPERATION_KINDS[name]
