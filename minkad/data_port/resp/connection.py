"""One connection of a Redis client: commands in, answers out, in the same order."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, cast

from minka.data_port import keep_alive
from minka.errors import MinkaError
from minka.hashing import crc16
from minka.operations import Operation, Outcome
from minka.ranges import MAX_KEY_BYTES
from minka.routing import Route
from minka.wire import MAX_VALUE_BYTES, Op
from minkad.data_port.resp.command import Kind, Words, wrong_number
from minkad.data_port.resp.keyspaces import ClusterView, View
from minkad.data_port.resp.parsing import Parser
from minkad.data_port.resp.replies import OK, RespError, bulk, internal
from minkad.data_port.resp.service import Service
from minkad.data_port.resp.slots import Joined, Part, SetSlot, Slot
from minkad.process import tasks

log: Final = logging.getLogger(__name__)

_UNANSWERED_BYTES: Final = 1024 * 1024  # of commands; with more, nothing is read until all are answered
_UNSENT_BYTES: Final = 256 * 1024  # with more in the transport, the client counts as not taking its answers
_ROOM_BYTES: Final = 16 * 1024  # what is waited for before more is read when memory is short
_UNCOUNTED_BYTES: Final = 16 * 1024  # of commands that are not answered, or not complete
_PROGRESS_S: Final = 0.5
_READS_AT_ONCE: Final = 64  # that have to wait
_RUN_SETS: Final = 1000  # that follow each other
_RUN_KEYS: Final = 64  # that are read at once
_HTTP: Final = (b"POST", b"HOST:")
DEFAULT_KEYSPACE: Final = b"default"


class RespConnection:
    """An `asyncio.Protocol`, which a class that may be compiled (see setup.py) can't inherit from.

    A command that has to wait doesn't hold up those after it, unless they could see that it was overtaken: a read
    waits for the connection's earlier writes, a write for its earlier reads.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.id = next(service.ids)
        self.resp3 = False
        self.is_readonly = False
        self.keyspace = DEFAULT_KEYSPACE
        self.name = b""
        self.library: dict[str, bytes] = {}
        self.began = time.monotonic()
        self.last_command = ""
        self.address = ""
        self.reads = 0
        self.writes = 0
        self._view: View | None = None
        self._parser = Parser()
        self._queue: deque[bytes | Slot] = deque()
        self._backlog: deque[Words] = deque()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._settles = False
        self._is_ending = False  # nothing more is taken, and once everything is answered the connection is over
        self._has_quit = False  # what has not begun does not begin
        self._unanswered = 0
        self._untaken = 0
        self._counted = 0  # bytes that the share has
        self._is_paused = False
        self._is_reading = True
        self._is_over = False
        self._progress: asyncio.TimerHandle | None = None
        self._awaits_room: asyncio.Task[None] | None = None

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self._transport = cast("asyncio.Transport", transport)
        try:
            self.share = self.service.memory.share(self._transport.abort)
        except MinkaError as error:
            self._is_over = True
            self._transport.write(RespError(f"ERR max number of clients reached: {error.message}").encoded)
            self._transport.close()
            return
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES, low=0)
        keep_alive(self._transport.get_extra_info("socket"))
        peer = self._transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if peer else "?:0"
        self.service.connections[self.id] = self
        self.service.connections_made += 1

    def data_received(self, data: bytes) -> None:
        """Commands have come, or parts of them."""
        if self._is_over or self._is_ending:
            return
        parser = self._parser
        commands = parser.feed(data)
        if not self.service.is_in_turn:
            self.service.begin_turn()
        if self._backlog:
            self._backlog.extend(commands)
        elif (done := self._run(commands)) < len(commands):
            self._backlog.extend(commands[done:])
        if parser.error is not None:
            self._is_ending = True
        if self._out:
            self._flush()
        if self._queue or self._backlog:
            self._unanswered += len(data)
            if self._unanswered > _UNCOUNTED_BYTES:
                self._count()
        elif self._is_ending and not self._is_over:
            self._end()
        if parser.partial > _UNCOUNTED_BYTES or self._counted:
            self._count()

    def eof_received(self) -> bool:
        """The client sends nothing more. Returns whether the transport is to leave the connection open, until all is
        answered; with TLS it can't.
        """
        self._is_ending = True
        is_answered = self._is_over or not (self._queue or self._backlog or self._out)
        return not is_answered and self._transport.get_extra_info("sslcontext") is None

    def pause_writing(self) -> None:
        """The client doesn't take its answers."""
        self._is_paused = True
        self._untaken = self._transport.get_write_buffer_size()
        self.share.take(self._untaken)
        self.share.sending_since = time.monotonic()
        self._watch_later(0)
        self._read_or_not()

    def resume_writing(self) -> None:
        """The client has taken all answers."""
        self._is_paused = False
        self._stop_watching()
        self.share.give(self._untaken)
        self.share.sending_since, self._untaken = None, 0
        self._settle_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over; what was begun goes on."""
        self._stop_watching()
        if self._awaits_room is not None:
            self._awaits_room.cancel()
        if self.service.connections.pop(self.id, None) is not None:
            self.share.close()
        self._is_over = True
        self._queue.clear()
        self._backlog.clear()
        self._out.clear()

    # Commands

    def _run(self, commands: Sequence[Words]) -> int:
        """Begin commands in their order, until one has to wait. Returns how many have begun."""
        service, index, count = self.service, 0, len(commands)
        table, get, set_ = service.commands, service.get, service.set
        while index < count and not self._is_paused:
            words = commands[index]
            command = table.get(words[0]) or service.find(words[0])
            if self._queue and command is not None and self._has_to_wait_for_more(command.kind):
                break
            if command is get and len(words) == 2:
                index = self._run_gets(commands, index)
                continue
            if command is set_ and len(words) == 3 and (done := self._run_sets(commands, index)):
                index += done
                continue
            index += 1
            try:
                if command is None and words[0].upper() in _HTTP:
                    self._refuse_http()
                    break
                if command is None:
                    raise unknown(words)
                if len(words) != command.arity and (command.arity > 0 or len(words) < -command.arity):
                    raise wrong_number(command.name)
                answer = command.run(self, words)
            except RespError as error:
                answer = error.encoded
            except Exception as error:  # noqa: BLE001 - the connection goes on
                answer = internal(error).encoded
            self._answer(answer)
            if self._has_quit:
                break
        service.commands_done += index
        return index

    def _refuse_http(self) -> None:
        """End the connection, as Redis does: a web page can have a browser send commands in the body of a POST."""
        log.warning("%s sent POST or Host: to the port for Redis clients: its connection is ended", self.address)
        self._has_quit = True
        self.close()

    def _has_to_wait_for_more(self, kind: Kind) -> bool:
        """Whether it has to wait for more than what can be read at once."""
        return self._has_to_wait(kind) and (not self.service.gets.run() or self._has_to_wait(kind))

    def _has_to_wait(self, kind: Kind) -> bool:
        if self._out_bytes > _UNSENT_BYTES:  # answers that wait for others
            return True
        if kind is Kind.ANY:
            return False
        if kind is Kind.READ:
            return self.writes > 0 or self.reads >= _READS_AT_ONCE
        return kind is Kind.ALONE or self.reads > 0

    def _run_gets(self, commands: Sequence[Words], index: int) -> int:
        """Begin the GETs from this one on. Returns the place of the next command. The first of a turn of the loop are
        answered at once, and those that come after them in the same turn together, at its end.
        """
        service, view, queue = self.service, self._view, self._queue
        if view is None or not self.share.has_plenty:
            return self._run_get(commands[index], index)
        if not service.is_in_turn:
            service.begin_turn()
        gets = service.gets
        keys = [commands[index][1]] if index + 1 == len(commands) else _run_of_gets(commands, index)
        if gets.is_first:
            gets.is_first = False
            values = self._values(keys)
            if values is not None:
                resp3 = self.resp3
                self._answer(b"".join([bulk(value, resp3) for value in values]))
                return index + len(keys)
        node_id, end = service.means.node_id, index
        for key in keys:
            route = view.route(key) if 0 < len(key) <= MAX_KEY_BYTES else None
            if route is None or route.leader != node_id:
                break
            slot = gets.add(view, route, key, self, queue[-1] if queue else None)
            if slot is not None:
                queue.append(slot)
            end += 1
        if len(keys) == _RUN_KEYS:
            gets.run()
        return end if end > index else self._run_get(commands[index], index)

    def _run_get(self, words: Words, index: int) -> int:
        """Begin one GET, which may have to wait."""
        try:
            self._answer(self.get(words[1]))
        except RespError as error:
            self._answer(error.encoded)
        except Exception as error:  # noqa: BLE001 - the connection goes on
            self._answer(internal(error).encoded)
        return index + 1

    def _run_sets(self, commands: Sequence[Words], index: int) -> int:
        """Begin the plain SETs from this one on, up to one about which there is something to say. Returns how many."""
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

    # What commands are made of

    @property
    def view(self) -> View:
        """The keyspace. Raises RespError if there is none of this name."""
        if self._view is None:
            self._view = self.service.keyspaces.view(self.keyspace)
            if self._view is None:
                raise no_keyspace(self.keyspace, "ERR")
        return self._view

    def use(self, keyspace: bytes) -> None:
        """Use another keyspace from now on. Raises RespError if there is none of this name."""
        view = self.service.keyspaces.view(keyspace)
        if view is None and keyspace != DEFAULT_KEYSPACE:
            raise no_keyspace(keyspace, "WRONGPASS")
        self.keyspace, self._view = keyspace, view

    def get(self, key: bytes) -> bytes | Slot:
        """GET."""
        values = self._values([key])
        if values is None:
            return self.read([key], self._one_value)
        return bulk(values[0], self.resp3)

    def _one_value(self, values: list[bytes | None]) -> bytes:
        return bulk(values[0], self.resp3)

    def _values(self, keys: list[bytes]) -> list[bytes | None] | None:
        """The values if they can be read here and now."""
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
    ) -> bytes | Slot:
        """Read keys; `finish` makes the answer of the values. With `only_presence` it may get any others in their
        place, and the values may have any size together. Raises RespError.
        """
        self.check_keys(keys)
        if self.reads:
            self.service.gets.run()  # so that what is read later isn't older
        values = self._values(keys) if len(keys) <= _RUN_KEYS else None
        if values is not None:
            return finish(values)
        made = cast("Callable[[list[object]], bytes]", finish)
        return self.read_later(keys, Op.READ, made, only_presence=only_presence)

    def read_later(
        self, keys: list[bytes], op: Op, finish: Callable[[list[object]], bytes], *, only_presence: bool = False
    ) -> Slot:
        """Read checked keys by requests; the results are those of `op`."""
        joined = Joined(self, len(keys), finish, is_write=False)
        begin = self.service.reads.begin
        begin(self.view, op, self.share, joined, keys, self.is_readonly, only_presence=only_presence)
        return joined

    def set(self, key: bytes, value: bytes) -> Slot:
        """A plain SET about which there is something to say. Raises RespError."""
        return self.set_all([(key, value)])

    def set_all(self, pairs: Sequence[tuple[bytes, bytes]]) -> Slot:
        """Set several keys; each partition takes its own as a whole. Raises RespError."""
        self.check_keys([key for key, _ in pairs])
        routes = [self._route_to_write(key) for key, _ in pairs]
        if max(len(value) for _, value in pairs) > MAX_VALUE_BYTES:
            raise too_large()
        joined = Joined(self, len(pairs), lambda _: OK, is_write=True)
        for position, ((key, value), route) in enumerate(zip(pairs, routes, strict=True)):
            batch = self.service.pipes.batch(self.view, route)
            batch.put(key, value)
            batch.takers.append(Part(joined, [position]))
        return joined

    def operate(
        self, operations: Sequence[tuple[bytes, Operation, int]], finish: Callable[[list[Outcome]], bytes]
    ) -> Slot:
        """Begin operations: (key, operation, size in bytes); `finish` makes the answer of the outcomes. Raises
        RespError.
        """
        self.check_keys([key for key, _, _ in operations])
        routes = [self._route_to_write(key) for key, _, _ in operations]
        made = cast("Callable[[list[object]], bytes]", finish)
        joined = Joined(self, len(operations), made, is_write=True)
        for position, ((key, operation, size), route) in enumerate(zip(operations, routes, strict=True)):
            batch = self.service.pipes.batch(self.view, route)
            batch.operate(key, operation, size)
            batch.takers.append(Part(joined, [position]))
        return joined

    def check_keys(self, keys: Sequence[bytes]) -> None:
        """Raises RespError for a key that Minka doesn't take, and for keys of several slots of a Redis Cluster."""
        if b"" in keys:
            raise RespError("ERR a key is empty: a key of Minka has 1 to 65536 bytes")
        if max(map(len, keys)) > MAX_KEY_BYTES:
            raise RespError("ERR a key is too long: a key of Minka has 1 to 65536 bytes")
        if len(keys) > 1 and self.view.is_cluster and len(set(map(crc16, keys))) > 1:
            raise RespError("CROSSSLOT Keys in request don't hash to the same slot")

    def _route_to_write(self, key: bytes) -> Route:
        if not 0 < len(key) <= MAX_KEY_BYTES:
            self.check_keys([key])
        view = self._view or self.view
        route = view.route(key)
        if route is None:
            raise RespError("TRYAGAIN the partition of the key is not known yet")
        if view.is_cluster and route.leader != self.service.means.node_id and route.leader:
            raise self.service.means.refusals.moved(route.leader, key)
        return route

    @property
    def cluster(self) -> ClusterView:
        """The keyspace, if its clients go to the right node themselves. Raises RespError."""
        view = self.view
        if not isinstance(view, ClusterView):
            raise RespError("ERR This instance has cluster support disabled")
        return view

    # Answers

    def filled(self, slot: Slot) -> None:
        """An answer is known; it is sent once all before it are."""
        queue, out = self._queue, self._out
        if len(queue) == 1 and queue[0] is slot and self._is_at_rest and slot.answer is not None:
            queue.popleft()
            self._unanswered = 0
            self._transport.write(slot.answer)
            return
        self._out_bytes += len(slot.answer or b"")
        if self._out_bytes > _UNSENT_BYTES:
            self._count()
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

    @property
    def _is_at_rest(self) -> bool:
        """Whether there is nothing to be done but to send answers."""
        return self._is_reading and not (
            self._out or self._backlog or self._counted or self._is_ending or self._is_over
        )

    def _settle_soon(self) -> None:
        if not self._settles:
            self._settles = True
            self.service.settle_soon(self)

    def settle(self) -> None:
        """Send what is answered, begin what has waited for it, and read further if there is room."""
        self._settles = False
        if self._is_over:
            return
        if self._backlog and not self._has_quit:
            some = list(self._backlog)
            self._backlog.clear()
            self._backlog.extend(some[self._run(some) :])
        self._flush()
        if self._queue or (self._backlog and not self._has_quit):
            self._read_or_not()
            return
        self._unanswered = 0
        if self._counted:
            self._count()
        if self._is_ending:
            self._end()
        elif not self._is_reading:
            self._read_or_not()

    def _end(self) -> None:
        if self._parser.error is not None:
            self._transport.write(self._parser.error.encoded)
        self._is_over = True
        self._transport.close()

    def end_after_answers(self) -> None:
        """Begin no more commands, and close the connection once all are answered."""
        self._is_ending = self._has_quit = True
        self._settle_soon()

    def close(self) -> None:
        """End the connection: what was answered is sent, if the client takes it."""
        if self._is_paused:
            self._transport.abort()
        else:
            self._flush()
            self._transport.close()
        self._is_over = True

    def _flush(self) -> None:
        out = self._out
        if not out:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        self._out = []
        self._out_bytes -= len(data)
        self._transport.write(data)

    # Reading no more than there is room for

    def _count(self) -> None:
        """Count what has come and is not answered, and answers that wait for others; a little is a part of what any
        connection takes.
        """
        held = self._unanswered + self._parser.partial + self._out_bytes
        counted = held if held > _UNCOUNTED_BYTES else 0
        self.share.take(counted - self._counted)
        self._counted = counted
        if counted:
            self._read_or_not()

    def _read_or_not(self) -> None:
        if self._is_over:
            return
        has_plenty = self.share.has_plenty
        if self._unanswered > (_UNANSWERED_BYTES if has_plenty else 0) or self._is_paused:
            if self._is_reading:
                self._is_reading = False
                self._transport.pause_reading()
        elif has_plenty:
            self._resume_reading()
        elif self._awaits_room is None and not self._is_reading:
            self._awaits_room = tasks.start(self._await_room(), "room for a client", lambda _: self._transport.abort())

    def _resume_reading(self) -> None:
        if not self._is_reading and not self._is_over:
            self._is_reading = True
            self._transport.resume_reading()

    async def _await_room(self) -> None:
        if await self.share.reserve(_ROOM_BYTES):
            self.share.give(_ROOM_BYTES)
        self._awaits_room = None
        if not self._unanswered and not self._is_paused:
            self._resume_reading()

    def _watch_later(self, taken: int) -> None:
        self._progress = asyncio.get_running_loop().call_later(_PROGRESS_S, self._watch, taken)

    def _watch(self, taken: int) -> None:
        """See whether a slow client takes anything at all. `taken`: how much it had at the last look."""
        now_taken = self._untaken - self._transport.get_write_buffer_size()
        if now_taken > taken:
            self.share.sending_since = time.monotonic()
        self._watch_later(now_taken)

    def _stop_watching(self) -> None:
        if self._progress is not None:
            self._progress.cancel()
            self._progress = None


def _run_of_gets(commands: Sequence[Words], index: int) -> list[bytes]:
    """The keys of the GETs that follow each other from this one on, as many as are read together at most."""
    keys = [commands[index][1]]
    name = commands[index][0]
    for words in islice(commands, index + 1, index + _RUN_KEYS):
        if words[0] != name or len(words) != 2:
            break
        keys.append(words[1])
    return keys


def unknown(words: Words) -> RespError:
    """The error for a command that doesn't exist, as Redis words it."""
    name = words[0][:128].decode("utf-8", "replace")
    shown = " ".join(f"'{word[:128].decode('utf-8', 'replace')}'" for word in words[1:20])[:128]
    return RespError(f"ERR unknown command '{name}', with args beginning with: {shown}")


def no_keyspace(name: bytes, code: str) -> RespError:
    """The error for a keyspace that doesn't exist, with what to do."""
    shown = name[:64].decode("utf-8", "replace")
    return RespError(
        f"{code} there is no keyspace '{shown}': create it (minkactl keyspace create {shown} --partitions 64 "
        "--hash crc16), or name another one as the user (AUTH KEYSPACE '')"
    )


def too_large() -> RespError:
    """The error for a value over the limit."""
    return RespError("ERR string exceeds maximum allowed size (16777216 bytes)")
