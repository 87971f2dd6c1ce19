"""The rules for names of pallets, duties and shards. Clients, shards and nodes all use them."""

from minka.cluster.name_rules import name_problem
from minka.duties.limits import MAX_ID_CHARS


def id_problem(name: str) -> str:
    """The reason why no duty or shard can have this name; "" if it can be used."""
    return name_problem(name, MAX_ID_CHARS)


def pallet_problem(name: str) -> str:
    """The reason why no pallet can have this name; "" if it can be used. A slash isn't allowed, since people name a
    duty as PALLET/ID.
    """
    return "must have no slash" if "/" in name else id_problem(name)
