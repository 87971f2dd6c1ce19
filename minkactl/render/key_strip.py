"""The key space of a keyspace by ranges, as wide as the terminal."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from minka.v1.cluster_pb2 import Keyspace
from minkactl.keymap import Canvas, key_map
from minkactl.pages import Row
from minkactl.render.terminal import console, signs


def strip(keyspace: Keyspace, nodes: Sequence[str], rows: Sequence[Row]) -> RenderableType:
    """The key space, as wide as the terminal."""
    target = console()
    colours = target.color_system is not None and not target.no_color
    lines = key_map(keyspace, nodes, rows, Canvas(target.width, signs(), colours))
    return Group(*(Text.assemble(*line) for line in lines))
