"""The digest of a plan. It makes sure that the plan is applied exactly as it was made."""

import hashlib

from minka.v1.admin_pb2 import Plan


def without_splits(plan: Plan) -> Plan:
    """The plan with its moves only, and with the digest that then fits."""
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
