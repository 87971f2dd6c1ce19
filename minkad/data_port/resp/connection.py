"""One connection of a Redis client: commands in, answers out, in the same order."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, cast

from minka.cluster.key_ranges import MAX_KEY_BYTES
from minka.cluster.routing_table import Route
from minka.errors import MinkaError
from minka.wire.data_port import keep_alive
from minka.wire.key_operations import Operation, Outcome
from minka.wire.kv_frames import MAX_ANSWER_BYTES, MAX_VALUE_BYTES, Op
from minkad.data_port.resp.command import Command, Kind, Words, upper
from minkad.data_port.resp.gets import MAX_KEYS, GetSlot, run_of_gets
from minkad.data_port.resp.intake import Intake
from minkad.data_port.resp.keyspaces import ClusterView, View
from minkad.data_port.resp.receiving import UNCOUNTED_BYTES, Receiving
from minkad.data_port.resp.refusals import check_keys, no_keyspace, too_large, unknown
from minkad.data_port.resp.replies import OK, RespError, answer_too_large, bulk, internal
from minkad.data_port.resp.service import Service
from minkad.data_port.resp.slots import Joined, Owner, Part, SetSlot, Slot
from minkad.data_port.resp.untaken import Untaken

log: Final = logging.getLogger(__name__)

_UNSENT_BYTES: Final = 64 * 1024  # with more in the transport, the client counts as not taking its answers
_READS_AT_ONCE: Final = 64  # reads under way
_SLOTS_AT_ONCE: Final = 2000  # places in the order of answers
_RUN_SETS: Final = 1000  # consecutive SETs that begin together
_ENDS: Final = frozenset({"RESET", "QUIT"})  # commands that end a transaction, besides EXEC and DISCARD
_HTTP: Final = (b"POST", b"HOST:")
DEFAULT_KEYSPACE: Final = b"default"


class RespConnection:
    """Has the methods of `asyncio.Protocol`, but a class that may be compiled (see setup.py) can't inherit from it.

    Later commands overtake a command that has to wait, unless the client could notice: a read waits for earlier writes
    of the connection, and a write for earlier reads.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.id = next(service.ids)
        self.resp3 = False  # by HELLO 3
        self.is_readonly = False  # True since READONLY: a replica at this node may answer reads
        self.keyspace = DEFAULT_KEYSPACE  # the name; the keyspace need not exist
        self.name = b""
        self.library: dict[str, bytes] = {}
        self.began = time.monotonic()
        self.address = ""
        self.reads = 0  # see Owner
        self.writes = 0
        self._view: View | None = None  # of `keyspace`, as soon as a command has found it
        self._queue: deque[bytes | Slot] = deque()  # answers in order, from the first that isn't known yet
        self._intake = Intake()
        self.is_refusing = False  # since MULTI, until the end of the transaction
        self.is_busy = False  # with one command; no other begins meanwhile
        self._out: list[bytes] = []  # answers to send with the next flush, before those in `_queue`
        self._out_bytes = 0  # of the known answers in `_out` and `_queue`
        self._settles = False  # True if `settle` is about to be called
        self._is_ending = False  # nothing more is taken; the connection ends when everything is answered
        self._has_quit = False  # commands that have not begun don't begin
        self._is_over = False  # closed, or about to close: nothing more is sent

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = cast("asyncio.Transport", transport)
        try:
            self.share = self.service.memory.share(self._transport.abort)
        except MinkaError as error:
            self._is_over = True
            self._transport.write(RespError(f"ERR max number of clients reached: {error.message}").encoded)
            self._transport.close()
            return
        self._untaken = Untaken(self._transport, self.share)
        self._receiving = Receiving(self._transport, self.share, self._intake, self._untaken, self._begin_next)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES, low=0)
        keep_alive(self._transport.get_extra_info("socket"))
        peer = self._transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if peer else "?:0"
        self.service.connections[self.id] = self
        self.service.connections_made += 1

    def data_received(self, data: bytes) -> None:
        """Commands, or parts of them, have come."""
        if self._is_over or self._is_ending:
            return
        if not self.service.is_in_turn:
            self.service.begin_turn()
        self._intake.add(data)
        self._go_on()
        if self._out:
            self._flush()
        if not (self._queue or self._has_more):
            self._rest()
        if self._receiving.counted or self._held > UNCOUNTED_BYTES:
            self._receiving.count(self._held)

    def eof_received(self) -> bool:
        """The client sends nothing more. Returns True if the transport is to stay open until everything is answered; a
        transport with TLS can't.
        """
        self._is_ending = True
        is_answered = self._is_over or not (self._queue or self._has_more or self._out)
        return not is_answered and self._transport.get_extra_info("sslcontext") is None

    def pause_writing(self) -> None:
        """The client doesn't take its answers."""
        self._untaken.begin()
        self._receiving.read_or_not()

    def resume_writing(self) -> None:
        """The client has taken all answers."""
        self._untaken.end()
        self._settle_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over; commands that have begun go on."""
        if self.service.connections.pop(self.id, None) is not None:
            self._untaken.stop_watching()
            self._receiving.stop()
            self.share.close()
        self._is_over = True
        self._queue.clear()
        self._intake.forget()
        self._out.clear()

    # Commands

    @property
    def _has_more(self) -> bool:
        """True if input has come that is still to begin."""
        return self._intake.has_more and not self._has_quit

    def _go_on(self) -> None:
        """Begin the commands that have come, until one has to wait or this turn of the loop has taken long enough."""
        intake, service = self._intake, self.service
        while not self._has_quit:
            if intake.at < len(intake.commands):
                intake.at = self._run(intake.commands, intake.at)
                if intake.at < len(intake.commands):
                    break
            if self._untaken.is_there or service.is_late() or not intake.cut():
                break
            if intake.error is not None:
                self._is_ending = True
        if self._has_more and service.is_late():
            self._settle_soon()  # in the next turn

    def _run(self, commands: Sequence[Words], index: int) -> int:
        """Begin commands in order, from `index` on, until a command has to wait. Returns the next command's place."""
        service, count, first = self.service, len(commands), index
        table, get, set_, share = service.commands, service.get, service.set, self.share
        has_leave = self._receiving.take_leave()
        while index < count and not self._untaken.is_there and not service.is_late():
            words = commands[index]
            command = table.get(words[0]) or service.find(words[0])
            if self.is_refusing and command is not None and command.name not in _ENDS:
                command = None
            kind = command.kind if command is not None else Kind.ANY
            if not (
                kind is Kind.ANY or share.has_plenty or (not self._queue and (has_leave or self._receiving.has_room()))
            ):
                break
            if self._queue and self._has_to_wait_for_more(kind):
                break
            has_leave = has_leave and kind is Kind.ANY
            if command is get and len(words) == 2:
                index = self._run_gets(commands, index)
                continue
            if command is set_ and len(words) == 3 and (done := self._run_sets(commands, index)):
                index += done
                continue
            index += 1
            self._answer(self._carried_out(command, words))
            if self._has_quit:
                break
        service.commands_done += index - first
        return index

    def _carried_out(self, command: Command | None, words: Words) -> bytes | Slot:
        """Carry out any command. Returns its answer, or the slot for it."""
        try:
            if command is None:
                return self._unknown(words)
            command.check(words)
            return command.run(self, words)
        except RespError as error:
            return error.encoded
        except Exception as error:  # noqa: BLE001 - the connection goes on
            return internal(error).encoded

    def _unknown(self, words: Words) -> bytes:
        """Answer an unknown command, or a command after MULTI: none of them is carried out. Raises RespError."""
        name = upper(words[0])
        if name in _HTTP:
            # As Redis does: a web page can make a browser send commands in the body of a POST.
            log.warning("%s sent POST or Host: to the port for Redis clients: its connection is ended", self.address)
            self._has_quit = True
            self.close()
            return b""
        if not self.is_refusing:
            self.is_refusing = name == b"MULTI"
            raise RespError(f"ERR {name.decode()} without MULTI") if name in (b"EXEC", b"DISCARD") else unknown(words)
        self.is_refusing = name not in (b"EXEC", b"DISCARD")
        if name == b"EXEC":
            raise RespError("EXECABORT Transaction discarded because of previous errors.")
        if name == b"DISCARD":
            return OK
        raise RespError("ERR MULTI was refused, and so is all that follows it until EXEC or DISCARD")

    def _has_to_wait_for_more(self, kind: Kind) -> bool:
        """True if the command has to wait, even after the gathered GETs were read."""
        return self._has_to_wait(kind) and (not self.service.gets.run() or self._has_to_wait(kind))

    def _has_to_wait(self, kind: Kind) -> bool:
        if self._out_bytes > _UNSENT_BYTES or self.is_busy or len(self._queue) >= _SLOTS_AT_ONCE:
            return True  # too many answers, or a long command, come first
        if kind is Kind.ANY:
            return False
        if kind is Kind.READ:
            return self.writes > 0 or self.reads >= _READS_AT_ONCE
        return kind is Kind.ALONE or self.reads > 0

    def _run_gets(self, commands: Sequence[Words], index: int) -> int:
        """Begin the GETs from `index` on. Returns the place of the next command. The GETs of all clients in one turn of
        the loop are read together at the turn's end.
        """
        service, view, queue = self.service, self._view, self._queue
        if view is None or not self.share.has_plenty:
            return self._run_get(commands, index)
        if not service.is_in_turn:
            service.begin_turn()
        gets = service.gets
        keys = [commands[index][1]] if index + 1 == len(commands) else run_of_gets(commands, index)
        node_id, end = service.means.node_id, index
        for key in keys:
            route = view.route(key) if 0 < len(key) <= MAX_KEY_BYTES else None
            if route is None or route.leader != node_id:
                break
            slot = gets.add(view, route, key, self, queue[-1] if queue else None)
            if slot is not None:
                queue.append(slot)
            end += 1
        if len(keys) == MAX_KEYS:
            gets.run()
        return end if end > index else self._run_get(commands, index)

    def _run_get(self, commands: Sequence[Words], index: int) -> int:
        self._answer(self._carried_out(self.service.get, commands[index]))
        return index + 1

    def _run_sets(self, commands: Sequence[Words], index: int) -> int:
        """Begin the plain SETs from `index` on, up to the first that needs more checks. Returns their number."""
        view, node_id, pipes, queue = self._view, self.service.means.node_id, self.service.pipes, self._queue
        if view is None:
            return 0
        name, done = commands[index][0], 0
        for words in islice(commands, index, index + _RUN_SETS):
            if words[0] != name or len(words) != 3:
                break
            key, value = words[1], words[2]
            if not 0 < len(key) <= MAX_KEY_BYTES or len(value) > MAX_VALUE_BYTES:
                break
            route = view.route(key)
            if route is None or (view.is_cluster and route.leader != node_id):
                break
            batch = pipes.batch(view, route)
            batch.put(key, value)
            done += 1
            takers = batch.takers
            if takers and queue:
                last = takers[-1]
                if isinstance(last, SetSlot) and last is queue[-1]:
                    last.count += 1
                    continue
            slot = SetSlot(self)
            takers.append(slot)
            queue.append(slot)
        return done

    def _answer(self, answer: bytes | Slot) -> None:
        if isinstance(answer, bytes):
            self._out_bytes += len(answer)
        if self._queue:
            self._queue.append(answer)
        elif isinstance(answer, bytes):
            self._out.append(answer)
            if self._out_bytes > _UNSENT_BYTES:
                self._flush()
        elif answer.answer is not None:
            self._out.append(answer.answer)
        else:
            self._queue.append(answer)

    # Building blocks of commands

    @property
    def view(self) -> View:
        """The keyspace. Raises RespError if no keyspace has this name."""
        if self._view is None:
            self._view = self.service.keyspaces.view(self.keyspace)
            if self._view is None:
                raise no_keyspace(self.keyspace, "ERR", self.service.knows_table())
        return self._view

    def use(self, keyspace: bytes) -> None:
        """Use another keyspace from now on. Raises RespError if no keyspace has this name."""
        view = self.service.keyspaces.view(keyspace)
        if view is None and keyspace != DEFAULT_KEYSPACE:
            raise no_keyspace(keyspace, "WRONGPASS", self.service.knows_table())
        self.keyspace, self._view = keyspace, view

    def get(self, key: bytes) -> bytes | Slot:
        """GET."""
        values = self._values([key])
        if values is None:
            resp3 = self.resp3
            return self.read([key], lambda found: bulk(found[0], resp3))
        return bulk(values[0], self.resp3)

    def _values(self, keys: list[bytes]) -> list[bytes | None] | None:
        """The values, if they can be read here and now."""
        view = self._view
        if view is None or not self.share.has_plenty or b"" in keys or max(map(len, keys)) > MAX_KEY_BYTES:
            return None
        began = time.perf_counter()
        values = self.service.reads.here(view, keys)
        if values is not None:
            self.service.telemetry.kv("read", "ok", time.perf_counter() - began)
        return values

    def read(
        self,
        keys: list[bytes],
        finish: Callable[[list[bytes | None]], bytes],
        *,
        only_presence: bool = False,
        owner: Owner | None = None,
    ) -> bytes | Slot:
        """Read keys; `finish` makes the answer from the values. With `only_presence`, `finish` may get placeholders,
        and the values may have any total size. Raises RespError.
        """
        check_keys(keys, self.view)
        if self.reads:
            self.service.gets.run()  # first, since later reads must not return older values
        values = self._values(keys) if len(keys) <= MAX_KEYS else None
        if values is not None:
            return finish(values)
        made = cast("Callable[[list[object]], bytes]", finish)
        return self.read_later(keys, Op.READ, made, only_presence=only_presence, owner=owner)

    def read_later(
        self,
        keys: list[bytes],
        op: Op,
        finish: Callable[[list[object]], bytes],
        *,
        only_presence: bool = False,
        owner: Owner | None = None,
    ) -> Slot:
        """Read checked keys by requests; `finish` gets the results of `op`. The answer goes to `owner`, if any, else to
        this connection.
        """
        if len(distinct := list(dict.fromkeys(keys))) < len(keys):
            keys, finish = distinct, _for_each(keys, distinct, finish)
        joined = Joined(owner or self, len(keys), finish, is_write=False, share=self.share)
        begin = self.service.reads.begin
        begin(self.view, op, self.share, joined, keys, self.is_readonly, only_presence=only_presence)
        return joined

    def set_all(self, pairs: Sequence[tuple[bytes, bytes]], owner: Owner | None = None) -> Slot:
        """Set several keys; each partition takes all of its keys or none. Raises RespError."""
        check_keys([key for key, _ in pairs], self.view)
        routes = [self._route_to_write(key) for key, _ in pairs]
        if max(len(value) for _, value in pairs) > MAX_VALUE_BYTES:
            raise too_large()
        joined = Joined(owner or self, len(pairs), lambda _: OK, is_write=True)
        for position, ((key, value), route) in enumerate(zip(pairs, routes, strict=True)):
            batch = self.service.pipes.batch(self.view, route)
            batch.put(key, value)
            batch.takers.append(Part(joined, [position]))
        return joined

    def operate(
        self,
        operations: Sequence[tuple[bytes, Operation, int]],
        finish: Callable[[list[Outcome]], bytes],
        owner: Owner | None = None,
    ) -> Slot:
        """Begin operations: (key, operation, size in bytes); `finish` makes the answer from the outcomes. Raises
        RespError.
        """
        check_keys([key for key, _, _ in operations], self.view)
        routes = [self._route_to_write(key) for key, _, _ in operations]
        made = cast("Callable[[list[object]], bytes]", finish)
        joined = Joined(owner or self, len(operations), made, is_write=True)
        for position, ((key, operation, size), route) in enumerate(zip(operations, routes, strict=True)):
            batch = self.service.pipes.batch(self.view, route)
            batch.operate(key, operation, size)
            batch.takers.append(Part(joined, [position]))
        return joined

    def _route_to_write(self, key: bytes) -> Route:
        if not 0 < len(key) <= MAX_KEY_BYTES:
            check_keys([key], self.view)
        view = self._view or self.view
        route = view.route(key)
        if route is None:
            raise RespError("TRYAGAIN the partition of the key is not known yet")
        if view.is_cluster and route.leader != self.service.means.node_id and route.leader:
            raise self.service.means.refusals.moved(route.leader, key)
        return route

    @property
    def cluster(self) -> ClusterView:
        """The keyspace, if its clients choose the right node themselves. Raises RespError."""
        view = self.view
        if not isinstance(view, ClusterView):
            raise RespError("ERR This instance has cluster support disabled")
        return view

    # Answers

    def filled(self, slot: Slot) -> None:
        """An answer is known; send it after all earlier answers."""
        queue, out = self._queue, self._out
        if len(queue) == 1 and queue[0] is slot and self._is_at_rest and slot.answer is not None:
            queue.popleft()
            self._intake.unanswered = 0
            self._write(slot.answer)
            return
        self._out_bytes += len(slot.answer or b"")
        if self._out_bytes > UNCOUNTED_BYTES:
            self._receiving.count(self._held)
        first = queue[0] if queue else None
        if first is not slot:
            return
        while queue:
            head = queue[0]
            answer = head if isinstance(head, bytes) else head.answer
            if answer is None:
                break
            out.append(answer)
            queue.popleft()
        if self._out_bytes > _UNSENT_BYTES:
            self._flush()
        self._settle_soon()

    def keep(self, size: int) -> None:
        """An answer of `size` bytes waits for its turn in a slot."""
        self._out_bytes += size
        if self._out_bytes > UNCOUNTED_BYTES:
            self._receiving.count(self._held)
        self._settle_soon()

    def may_keep_more(self) -> bool:
        """True if few bytes of answers wait for their turn, and there is memory for more answers."""
        return self._out_bytes <= _UNSENT_BYTES and self.share.has_plenty

    def _answer_late(self) -> None:
        """Send the answers of the first slot one by one, as far as the client takes them."""
        queue = self._queue
        while queue and not self._untaken.is_there:
            head = queue[0]
            if not isinstance(head, GetSlot) or not head.is_late:
                break
            if self.service.is_late():
                self._settle_soon()
                break
            answer = head.next()
            if answer is None:
                break
            self._out.append(answer)
            if head.is_done:
                head.fill(b"")
            if self._out_bytes > _UNSENT_BYTES:
                self._flush()

    @property
    def _is_at_rest(self) -> bool:
        """True if nothing is left to do but send answers."""
        return self._receiving.is_reading and not (
            self._out or self._has_more or self._receiving.counted or self._is_ending or self._is_over
        )

    def _settle_soon(self) -> None:
        if not self._settles:
            self._settles = True
            self.service.settle_soon(self)

    def settle(self) -> None:
        """Send the answers that are ready, begin the commands that waited, and read more input if there is room."""
        self._settles = False
        if self._is_over:
            return
        self._answer_late()
        self._go_on()
        self._flush()
        if self._queue or self._has_more:
            if self._receiving.counted or self._held > UNCOUNTED_BYTES:
                self._receiving.count(self._held)
            else:
                self._receiving.read_or_not()
            return
        self._rest()
        if self._receiving.counted:
            self._receiving.count(self._held)
        if not self._receiving.is_reading:
            self._receiving.read_or_not()

    def _rest(self) -> None:
        """Everything that has come is answered."""
        self._intake.unanswered = 0
        self._receiving.take_leave()
        if self._is_ending and not self._is_over:
            if self._intake.error is not None:
                self._transport.write(self._intake.error.encoded)
            self._is_over = True
            self._transport.close()

    def end_after_answers(self) -> None:
        """Begin no more commands, and close the connection after all begun commands are answered."""
        self._is_ending = self._has_quit = True
        self._settle_soon()

    def close(self) -> None:
        """End the connection: answers are still sent, if the client takes them."""
        if self._untaken.is_there:
            self._transport.abort()
        else:
            self._flush()
            self._transport.close()
        self._is_over = True

    def abort(self) -> None:
        """End the connection at once."""
        self._is_over = True
        self._transport.abort()

    def _flush(self) -> None:
        out = self._out
        if not out:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        self._out = []
        self._out_bytes -= len(data)
        self._write(data)

    def _write(self, data: bytes) -> None:
        if self._untaken.is_there:
            self._untaken.add(len(data))
        self._transport.write(data)

    @property
    def _held(self) -> int:
        """Bytes of input that isn't answered yet, and of answers that aren't sent yet."""
        return self._intake.weight + self._out_bytes

    def _begin_next(self) -> bool:
        if self._has_more:
            self._settle_soon()
        return self._has_more


def _for_each(
    keys: list[bytes], distinct: list[bytes], finish: Callable[[list[object]], bytes]
) -> Callable[[list[object]], bytes]:
    """Make the answer for `keys`, of which some are equal, from the results for the distinct keys."""
    places = {key: place for place, key in enumerate(distinct)}

    def made(results: list[object]) -> bytes:
        found = [results[places[key]] for key in keys]
        if sum([len(one) for one in found if isinstance(one, bytes)]) > MAX_ANSWER_BYTES:
            raise answer_too_large()
        return finish(found)

    return made
