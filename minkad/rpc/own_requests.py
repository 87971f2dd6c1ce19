"""Requests of this node to itself: answered directly, with the checks and errors of a gRPC call between nodes."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from minka.errors import Code, MinkaError
from minkad.core.controller_methods import Method, Request, Response
from minkad.rpc.validation import check, check_sender

log: Final = logging.getLogger(__name__)


async def answer_here(
    method: Method[Request, Response],
    request: Request,
    node_id: str,
    answer: Callable[[Request], Awaitable[Response]],
) -> Response:
    """The response to a request of `node_id`, this node. Raises MinkaError; INTERNAL for any other failure."""
    try:
        check(request)
        check_sender(request, node_id)
        return await answer(request)
    except MinkaError:
        raise
    except Exception as error:
        log.exception("a call failed", extra={"method": method.path})
        raise MinkaError(Code.INTERNAL, f"{type(error).__name__}: {error}") from error
