"""The digest of a plan. It shows a controller that a plan was edited after it was made; the controller then refuses the
plan.
"""

import hashlib

from minka.v1.admin_pb2 import Plan


def without_splits(plan: Plan) -> Plan:
    """The plan without its splits, and with a new digest."""
    moves = Plan()
    moves.CopyFrom(plan)
    del moves.splits[:]
    moves.digest = plan_digest(moves)
    return moves


def plan_digest(plan: Plan) -> str:
    """SHA-256, in hexadecimal, over everything in the plan except the digest."""
    content = Plan()
    content.CopyFrom(plan)
    content.digest = ""
    return hashlib.sha256(content.SerializeToString(deterministic=True)).hexdigest()
