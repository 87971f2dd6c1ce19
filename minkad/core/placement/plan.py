"""What makes a plan that plan and no other, and when none can be made."""

import hashlib

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import Plan
from minkad.core.state import State


def plan_digest(plan: Plan) -> str:
    """SHA-256, in hexadecimal, over everything in the plan but the digest itself."""
    content = Plan()
    content.CopyFrom(plan)
    content.digest = ""
    return hashlib.sha256(content.SerializeToString(deterministic=True)).hexdigest()


def refuse_if_running(state: State) -> None:
    """One operation at a time: OPERATION_RUNNING says which."""
    running = state.running_operation()
    if running is not None:
        raise MinkaError(
            Code.OPERATION_RUNNING,
            f"operation {running.id} (reassign of {running.migration_count} partitions, "
            f"asked for by {running.requested_by or 'unknown'}) has not ended",
            operation=str(running.id),
        )
