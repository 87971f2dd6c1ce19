"""When no plan can be made."""

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Operation
from minkad.core.state import State, operation_name


def refuse_if_running(state: State) -> None:
    """One operation with migrations at a time: OPERATION_RUNNING says which."""
    running = state.running_operation()
    if running is not None:
        raise MinkaError(
            Code.OPERATION_RUNNING,
            f"operation {running.id} ({operation_name(state.keyspaces, running)}, {_by(running)}) has not ended",
            operation=str(running.id),
        )


def _by(operation: Operation) -> str:
    return "begun by itself" if operation.automatic else f"asked for by {operation.requested_by or 'somebody unknown'}"
