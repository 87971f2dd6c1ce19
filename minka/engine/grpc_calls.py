"""The common parts of the library's gRPC calls: addresses, channel options, and failed calls as `MinkaError`."""

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import grpc

from minka import tls_files
from minka.cluster.endpoints import DEFAULT_ENDPOINT, endpoint_problem
from minka.errors import Code, MinkaError, error_from_proto
from minka.tls import Tls
from minka.v1 import errors_pb2

# gRPC prepares for forks by default, and these preparations crash one child in ten where grpc.aio is in use. Without
# them a child lives, and gets an error if it uses its parent's clients. If the variable is set already, it stays as it
# is.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

ERROR_METADATA: Final = "minka-error-bin"
MAX_REASON_CHARS: Final = 200
_MAX_MESSAGE_BYTES: Final = 128 * 1024 * 1024

_aio_process = 0  # the id of the process that first used grpc.aio, this one or an ancestor; 0: none

# gRPC begins the text of a failure with one of these if there was no connection yet, so nothing was sent.
_NEVER_SENT: Final = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")

# gRPC reports in these words that the answer was HTTP, not gRPC. For HTTP's status 404, gRPC's status is UNIMPLEMENTED.
_NO_GRPC: Final = "Received http2 header with status"

# gRPC's texts if TLS or the port prevents the connection, and their meanings. The first that fits counts.
_OTHER_PORT: Final = "this isn't the gRPC port of a minkad; perhaps it is the HTTP or data port"
_OTHER_TLS: Final = (
    "perhaps TLS is on at the other side only, or it does not accept this side's certificate, "
    "or this isn't the gRPC port"
)
_OTHER_HOST: Final = "the certificate is not for this address"
_NOT_VALID: Final = "the certificate is not valid, or from another authority than those in tls.ca"
_HINTS: Final = (
    ("Failed parsing HTTP/2", _OTHER_PORT),
    ("WRONG_VERSION_NUMBER", "TLS is on at this side only"),
    ("Hostname Verification", _OTHER_HOST),
    ("CERTIFICATE_VERIFY_FAILED", _NOT_VALID),
    ("Socket closed", _OTHER_TLS),
    ("Connection reset", _OTHER_TLS),
)


def channel_options(connect_timeout_s: float) -> list[tuple[str, int]]:
    """Options of a channel whose attempts to connect end after `connect_timeout_s` (gRPC's default is 20 s)."""
    return [
        ("grpc.min_reconnect_backoff_ms", max(1, int(connect_timeout_s * 1000))),  # also the time limit of an attempt
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.use_local_subchannel_pool", 1),  # so a new channel connects even if another channel has just failed
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.enable_http_proxy", 0),  # nodes are reached directly, even if the environment has a proxy for the web
    ]


def channel_credentials(tls: Tls | None) -> grpc.ChannelCredentials | None:
    """The credentials for a channel with these certificates; None for a channel without TLS. Raises INVALID_CONFIG, and
    INVALID_ARGUMENT for anything but a Tls.
    """
    if tls is None:
        return None
    if not isinstance(tls, Tls):
        raise MinkaError(Code.INVALID_ARGUMENT, f"tls is {type(tls).__name__}, not minka.Tls")
    pem = tls_files.read(tls)
    return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)


def claim_aio() -> None:
    """Record that this process uses grpc.aio. Raises INVALID_ARGUMENT if the process was forked from one that has used
    grpc.aio: a fork has no thread for grpc.aio's poller, so all its calls would wait for ever.
    """
    global _aio_process
    process = os.getpid()
    if _aio_process not in (0, process):
        raise MinkaError(
            Code.INVALID_ARGUMENT,
            "this process was forked from one that has used a client, and gRPC does not survive a fork: make clients "
            'only in the child, or start the child with multiprocessing.get_context("spawn")',
        )
    _aio_process = process


def aio_channel(
    address: str, credentials: grpc.ChannelCredentials | None, options: Sequence[tuple[str, int]]
) -> grpc.aio.Channel:
    """A channel; without `credentials` it has no TLS. It connects when first used.

    gRPC's poller ends when the last channel is freed, and the garbage collector of a forked child would wait for ever
    for the poller's thread. So once a channel is closed, no garbage may refer to it. The traceback of a gRPC error
    refers to the channel, and errors are often parts of reference cycles. Therefore an error that callers get has no
    traceback that leads into gRPC, and no error of gRPC as its cause or context.
    """
    claim_aio()
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, credentials, options=options)


def has_ended(loop: asyncio.AbstractEventLoop) -> bool:
    """For the end of a client: True if the client's loop is closed already. Then nothing can be cancelled, and the
    garbage collector closes the connections. Raises INVALID_ARGUMENT if the client's loop isn't closed, and the caller
    runs in another loop.
    """
    if loop is not asyncio.get_running_loop() and not loop.is_closed():
        raise MinkaError(Code.INVALID_ARGUMENT, "the client belongs to another event loop: close it there")
    return loop.is_closed()


def checked_endpoints(endpoints: Sequence[str]) -> tuple[str, ...]:
    """The endpoints without repetitions. Raises INVALID_ARGUMENT if there are none, or if one of them isn't
    host:port.
    """
    if isinstance(endpoints, str):
        raise MinkaError(Code.INVALID_ARGUMENT, f"endpoints is one string, not a list of them: {endpoints!r}")
    if not isinstance(endpoints, Iterable):
        raise MinkaError(Code.INVALID_ARGUMENT, f"endpoints is {type(endpoints).__name__}, not a list of strings")
    checked = dict.fromkeys(map(_checked_endpoint, endpoints))
    if not checked:
        text = "endpoints is empty: give host:port of a node, or leave it out to use MINKA_ENDPOINTS or the context"
        raise MinkaError(Code.INVALID_ARGUMENT, text)
    return tuple(checked)


def _checked_endpoint(endpoint: Any) -> str:
    problem = endpoint_problem(endpoint) if isinstance(endpoint, str) else "isn't str"
    if problem:
        raise MinkaError(Code.INVALID_ARGUMENT, f"endpoint {clipped(repr(endpoint))} {problem}")
    return str(endpoint)


def error_from_call(error: grpc.RpcError, address: str, *, repeatable: bool) -> MinkaError:
    """The `MinkaError` of a failed call, sync or aio.

    A node's refusal comes back as the node sent it. If a call broke off after it may have been sent,
    the code is UNREACHABLE if the call is `repeatable`, else OUTCOME_UNKNOWN.
    """
    assert isinstance(error, (grpc.Call, grpc.aio.AioRpcError)), f"not the error of a call: {error!r}"
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_METADATA:
            assert isinstance(value, bytes), "gRPC gives the values of -bin keys as bytes"
            return error_from_proto(errors_pb2.Error.FromString(value))
    status, text = error.code(), error.details() or ""
    if status is grpc.StatusCode.UNAVAILABLE and text.startswith(_NEVER_SENT):
        return MinkaError(Code.UNREACHABLE, f"{address}: {_cause(text)}", address=address)
    if status is grpc.StatusCode.UNIMPLEMENTED and text.startswith(_NO_GRPC):
        return MinkaError(Code.UNREACHABLE, f"{address}: it is not a minkad ({clipped(text)})", address=address)
    # INTERNAL is gRPC's own status if it could no longer send a message, or if the stream was reset.
    if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL):
        code = Code.UNREACHABLE if repeatable else Code.OUTCOME_UNKNOWN
        return MinkaError(code, f"{address}: the call broke off: {clipped(text)}", address=address)
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return MinkaError(Code.DEADLINE_EXCEEDED, f"{address} did not answer in time", address=address)
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return MinkaError(Code.TOO_LARGE, f"{address}: {clipped(text)}", address=address)
    return MinkaError(Code.INTERNAL, f"{address}: gRPC status {status.name}: {clipped(text)}", address=address)


_WRONG_NODE: Final = {
    *(Code.UNREACHABLE, Code.DEADLINE_EXCEEDED, Code.NO_CONTROLLER, Code.NOT_CONTROLLER),
    *(Code.NO_CLEARANCE, Code.SHUTTING_DOWN),
}  # after these codes another node may take the request; with any other code a node has refused the request itself


def unreachable(tried: Mapping[str, MinkaError]) -> MinkaError:
    """One error for a request that none of the addresses in `tried` took. It names each address with its reason. The
    code is UNREACHABLE only if each node gave no answer or is stopping.
    """
    reasons = "; ".join(_with_address(address, error) for address, error in tried.items())
    codes = {error.code for error in tried.values()}
    text = f"no node took the request: {reasons}"
    if refused := codes - _WRONG_NODE:
        return MinkaError(min(refused, key=lambda code: code.name), text)
    silent = sum(error.code in (Code.UNREACHABLE, Code.DEADLINE_EXCEEDED) for error in tried.values())
    if 0 < silent < len(tried):
        up = f"{len(tried) - silent} of {len(tried)} answered"
        text = f"no node took the request; perhaps too few are up ({up}): {reasons}"
    for code in (Code.DEADLINE_EXCEEDED, Code.NO_CONTROLLER, Code.NOT_CONTROLLER, Code.NO_CLEARANCE):
        if code in codes:
            # The nodes named an active controller that did not answer, and they know no other.
            return MinkaError(Code.NO_CONTROLLER if code is Code.NOT_CONTROLLER else code, text)
    if list(tried) == [DEFAULT_ENDPOINT]:
        text += f" ({DEFAULT_ENDPOINT} is the default: no endpoints, MINKA_ENDPOINTS, context or playground are set)"
    return MinkaError(codes.pop() if len(codes) == 1 else Code.UNREACHABLE, text)


def clipped(text: str) -> str:
    """The text, shortened to `MAX_REASON_CHARS`."""
    return text if len(text) <= MAX_REASON_CHARS else text[: MAX_REASON_CHARS - 1] + "…"


def _cause(text: str) -> str:
    """The last reason in gRPC's text, such as "Connection refused", with a hint if TLS or the port is the reason."""
    # The reasons of a failed handshake end with ": OK", which isn't a reason.
    last = text.removesuffix(": OK").rpartition(": ")[2].rstrip("].") or text
    hint = next((f" ({hint})" for sign, hint in _HINTS if sign in text), "")
    return clipped(last) + hint


def blames_certificate(error: MinkaError) -> bool:
    """True if there is no connection because of the other side's certificate."""
    return _OTHER_HOST in error.message or _NOT_VALID in error.message


def _with_address(address: str, error: MinkaError) -> str:
    message = clipped(error.message)
    return message if message.startswith(address) else f"{address}: {message}"
