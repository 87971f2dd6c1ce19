"""The rules for names of pallets, duties and shards. Clients, shards and nodes all use them."""

from minka.cluster.name_rules import name_problem
from minka.duties.limits import MAX_ID_CHARS


def id_problem(name: str) -> str:
    """The reason why no duty or shard can have the name; "" if one can."""
    return name_problem(name, MAX_ID_CHARS)


def pallet_problem(name: str) -> str:
    """The reason why no pallet can have the name; "" if one can. It can't have a slash, since people name a duty as
    PALLET/ID.
    """
    return "must have no slash" if "/" in name else id_problem(name)
