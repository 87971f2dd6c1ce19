"""The dataclasses and words of `minka.admin` have every field and value of the protos that they stand for."""

import dataclasses
from typing import Any

import pytest
from google.protobuf.descriptor import EnumDescriptor

from minka.admin import (
    Durability,
    HashFunction,
    Migration,
    MigrationState,
    NodeState,
    Operation,
    OperationKind,
    OperationState,
    PartitionState,
    Plan,
)
from minka.admin.operation_rows import operation_of
from minka.admin.plans import plan_of
from minka.engine.messages import Word, read, word
from minka.v1 import admin_pb2, cluster_pb2

WORDS = [NodeState, PartitionState, OperationState, MigrationState, HashFunction, Durability]
KINDS = [one.name for one in cluster_pb2.Operation.DESCRIPTOR.oneofs_by_name["kind"].fields]


@pytest.mark.parametrize("words", WORDS, ids=[one.__name__ for one in WORDS])
def test_words_are_those_of_the_protos(words: type[Word]) -> None:
    enum: EnumDescriptor = getattr(cluster_pb2, words.__name__).DESCRIPTOR
    assert {*words} - {"unknown"} == {word(enum, number) for number in enum.values_by_number if number}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_operation_is_told_with_all_its_fields(kind: str) -> None:
    message = cluster_pb2.Operation(id=1)
    own = getattr(message, kind)
    own.SetInParent()
    operation = operation_of(message)
    assert operation.kind is OperationKind(kind) is not OperationKind.UNKNOWN
    told = getattr(operation, kind)
    assert [one.name for one in dataclasses.fields(told)] == [one.name for one in own.DESCRIPTOR.fields]
    assert [other for other in KINDS if getattr(operation, other) is not None] == [kind]
    fields = {one.name for one in dataclasses.fields(Operation)}
    assert {one.name.removesuffix("_ms") for one in message.DESCRIPTOR.fields} == fields - {"kind"}


def test_a_migration_tells_the_replicas_that_change() -> None:
    message = cluster_pb2.Migration(operation_id=3, partition_id=7, original_replicas="ab", target_replicas="cd")
    several = read(Migration, message)
    assert (several.source, several.target, several.duty) == (None, None, None)
    assert (several.original_replicas, several.target_replicas) == (("a", "b"), ("c", "d"))
    fields = {one.name for one in dataclasses.fields(Migration)}
    assert {one.name.removesuffix("_ms") for one in message.DESCRIPTOR.fields} == fields


@pytest.mark.parametrize(
    ("move", "what"),
    [
        (admin_pb2.Move(partition_id=0, partition="flights/0", target_replicas="cd"), (0, None, None, None)),
        (admin_pb2.Move(duty=4, partition="feeds/bbc", target="fetcher-1"), (None, 4, None, "fetcher-1")),
    ],
)
def test_a_move_names_what_it_moves(move: admin_pb2.Move, what: tuple[Any, ...]) -> None:
    plan: Plan = plan_of(admin_pb2.Plan(moves=[move]))
    (told,) = plan.moves
    assert plan.pallet is None
    assert (told.partition_id, told.duty, told.source, told.target) == what
