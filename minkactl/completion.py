"""Shell completion of live names: quick or empty, and never a word on the terminal."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from minka.admin.control import Control
    from minka.duties import Client
    from minka.v1.cluster_pb2 import Operation, PartitionTable
    from minkactl.session import Session

COMPLETION_TIMEOUT_S: Final = 0.7
MAX_OPERATIONS: Final = 50

MAX_DUTIES: Final = 100

Answer = TypeVar("Answer")
Connection = TypeVar("Connection")
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _asked(ctx: click.Context, ask: "Callable[[Control], Answer]") -> Answer | None:
    """The cluster's answer; None if it takes longer than a person waits after pressing Tab."""
    return _asked_of(ctx, lambda session: session.control(), ask)


def _asked_of(
    ctx: click.Context,
    connect: "Callable[[Session], AbstractContextManager[Connection]]",
    ask: "Callable[[Connection], Answer]",
) -> Answer | None:
    from minka.errors import MinkaError
    from minkactl.session import Session

    given = ctx.find_object(Session) or Session()
    session = Session(given.endpoints_option, given.context, COMPLETION_TIMEOUT_S, quiet=True)
    try:
        with connect(session) as connection:
            return ask(connection)
    except (MinkaError, OSError):
        return None


def _names(
    pick: "Callable[[PartitionTable], Iterable[tuple[str, str]]]",
    ask: "Callable[[Control], PartitionTable]" = lambda control: control.summary().table,
) -> Complete:
    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        table = _asked(ctx, ask)
        if table is None:
            return []
        before, comma, last = incomplete.rpartition(",")
        return [
            CompletionItem(before + comma + name, help=text)
            for name, text in pick(table)
            if name.startswith(last)
        ]  # fmt: skip

    return complete


def _state(number: int) -> str:
    from minka.v1.cluster_pb2 import NodeState

    return NodeState.Name(NodeState.ValueType(number)).removeprefix("NODE_STATE_").lower()


complete_node: Final = _names(lambda table: [(node.id, _state(node.state)) for node in table.nodes])
complete_keyspace: Final = _names(
    lambda table: [(keyspace.name, f"{keyspace.partition_count} partitions") for keyspace in table.keyspaces]
)
complete_partition: Final = _names(
    lambda table: [
        (f"{keyspace.name}/{partition.slot}", f"id {partition.id}, {partition.leader or 'no leader'}")
        for keyspace in table.keyspaces
        for partition in table.partitions
        if partition.keyspace_id == keyspace.id
    ],
    lambda control: control.table(),
)


def _operations(wanted: "Callable[[Operation], bool]") -> Complete:
    """The newest operations of a kind, the newest first."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        answer = _asked(ctx, lambda control: control.operations(limit=MAX_OPERATIONS))
        return [
            CompletionItem(str(one.id), help=_operation(one))
            for one in (answer.operations if answer else ())
            if wanted(one) and str(one.id).startswith(incomplete)
        ]

    return complete


def _operation(operation: "Operation") -> str:
    from minka.v1.cluster_pb2 import OperationState

    kind = (operation.WhichOneof("kind") or "").replace("_", "-")
    state = OperationState.Name(operation.state).removeprefix("OPERATION_STATE_").lower()
    return " ".join(word for word in (kind, operation.drain.node, state) if word)


complete_operation: Final = _operations(lambda _: True)
complete_running_operation: Final = _operations(lambda operation: not operation.finished_ms)


def complete_load(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The loads that are remembered, the newest first."""
    answer = _asked(ctx, lambda control: control.loads())
    found = answer.loads if answer else ()
    return [CompletionItem(one.id, help=f"{one.rows} rows") for one in found if one.id.startswith(incomplete)]


def _of_duties(find: "Callable[[Client, str], Iterable[tuple[str, str]]]") -> Complete:
    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found = _asked_of(ctx, lambda session: session.duties(), lambda client: list(find(client, incomplete)))
        return [CompletionItem(name, help=text) for name, text in found or () if name.startswith(incomplete)]

    return complete


def _duty_names(client: "Client", incomplete: str) -> "Iterable[tuple[str, str]]":
    """The pallets, until one is named; then its duties."""
    pallet, slash, start = incomplete.partition("/")
    if not slash:
        return [(f"{one.pallet.id}/", f"{one.duties} duties") for one in client.pallets()]
    names = (f"{pallet}/{one.duty.id}" for one in client.list(pallet) if one.duty.id.startswith(start))
    return [(name, "") for name in islice(names, MAX_DUTIES)]


complete_pallet: Final = _of_duties(
    lambda client, _: [(one.pallet.id, f"{one.duties} duties") for one in client.pallets()]
)
complete_duty: Final = _of_duties(_duty_names)
complete_shard: Final = _of_duties(
    lambda client, _: [(one.name, f"{one.attached} duties") for one in client.shards().shards]
)


def complete_context(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names in the configuration file."""
    from minka.contexts import load
    from minka.errors import MinkaError

    try:
        contexts = load().contexts
    except MinkaError:
        return []
    return [
        CompletionItem(name, help=",".join(context.endpoints))
        for name, context in contexts.items()
        if name.startswith(incomplete)
    ]
