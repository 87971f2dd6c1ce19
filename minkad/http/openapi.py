"""The description of the REST interface (OpenAPI 3.1), made from the routes and their types of input and output."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

import minka
from minkad.http.problem_details import MEDIA_TYPE, Handler, Problem

_REF: Final = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter after the question mark."""

    name: str
    description: str
    schema: dict[str, Any] = field(default_factory=lambda: {"type": "string"})


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path: its purpose, its input and its output. A route without `gives` answers 204."""

    method: str
    path: str
    summary: str
    handler: Handler
    takes: Any = None
    gives: Any = None
    status: int = 200
    query: Sequence[Query] = ()
    headers: Sequence[str] = ()

    @property
    def described_path(self) -> str:
        """The path as OpenAPI writes it: without the patterns of aiohttp."""
        return self.path.replace(":.+}", "}")


def describe(routes: Sequence[Route]) -> dict[str, Any]:
    """The OpenAPI document of the routes."""
    types = [one for route in routes for one in (route.takes, route.gives) if one is not None]
    refs, schemas = msgspec.json.schema_components([*types, Problem], ref_template=_REF)
    by_type = {repr(one): ref for one, ref in zip([*types, Problem], refs, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.described_path, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Minka: pallets and duties",
            "version": minka.__version__,
            "description": "Served by every node on listen.http. See docs/duties-api.md.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(route: Route, refs: dict[str, Any]) -> dict[str, Any]:
    names = [part[1:-1] for part in route.described_path.split("/") if part.startswith("{")]
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
    ]
    parameters += [
        {"name": one.name, "in": "query", "description": one.description, "schema": one.schema} for one in route.query
    ]
    parameters += [{"name": name, "in": "header", "schema": {"type": "string"}} for name in route.headers]
    answer: dict[str, Any] = {"description": "Done."}
    if route.gives is not None:
        answer["content"] = {"application/json": {"schema": refs[repr(route.gives)]}}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "parameters": parameters,
        "responses": {
            str(route.status if route.gives is not None else 204): answer,
            "default": {
                "description": "Refused, or failed: the code says which.",
                "content": {MEDIA_TYPE: {"schema": refs[repr(Problem)]}},
            },
        },
    }
    if route.takes is not None:
        content = {"application/json": {"schema": refs[repr(route.takes)]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation
