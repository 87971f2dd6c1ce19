"""What makes a plan that plan and no other."""

import hashlib

from minka.v1.admin_pb2 import Plan


def without_splits(plan: Plan) -> Plan:
    """The same moves as a plan of their own."""
    moves = Plan()
    moves.CopyFrom(plan)
    del moves.splits[:]
    moves.digest = plan_digest(moves)
    return moves


def plan_digest(plan: Plan) -> str:
    """SHA-256, in hexadecimal, over everything in the plan but the digest itself."""
    content = Plan()
    content.CopyFrom(plan)
    content.digest = ""
    return hashlib.sha256(content.SerializeToString(deterministic=True)).hexdigest()
