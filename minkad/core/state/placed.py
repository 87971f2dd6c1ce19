"""Placed things, which plans, migrations and balancers move: partitions and duties."""

from typing import NamedTuple, Self

from minka.v1.admin_pb2 import Move
from minka.v1.cluster_pb2 import Migration


class Placed(NamedTuple):
    """A placed thing: its kind, by the name of its field in the `oneof placed` of messages, and its id."""

    kind: str
    id: int

    @classmethod
    def partition(cls, partition_id: int) -> Self:
        """A partition."""
        return cls("partition_id", partition_id)

    @classmethod
    def duty(cls, number: int) -> Self:
        """A duty."""
        return cls("duty", number)

    @classmethod
    def of(cls, message: Migration | Move) -> Self:
        """The thing that the message is about."""
        kind = message.WhichOneof("placed")
        assert kind is not None, message
        return cls(kind, getattr(message, kind))
