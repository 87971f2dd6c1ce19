"""The rules for names of pallets, duties and shards: the same for clients, shards and nodes."""

from minka.cluster.name_rules import name_problem
from minka.duties.limits import MAX_ID_CHARS


def id_problem(name: str) -> str:
    """The reason why no duty or shard can have the name; "" if one can."""
    return name_problem(name, MAX_ID_CHARS)


def pallet_problem(name: str) -> str:
    """The reason why no pallet can have the name; "" if one can. People type a pallet's name, a slash, and the id of a
    duty.
    """
    return "must have no slash" if "/" in name else id_problem(name)
