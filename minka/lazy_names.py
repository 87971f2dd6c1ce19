"""Lets a package import the module of a name only when the name is first used, since minkad and minkactl need only some
modules of a package.
"""

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, exported: list[str], modules: Mapping[str, Collection[str]], packages: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package. `modules` maps each module to the exported names that it has.
    `packages` names submodules, which are also imported at their first use, as in `minka.admin`.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name in module_of:
            return getattr(import_module(module_of[name]), name)
        if name not in packages:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return import_module(f"{package}.{name}")
        except ImportError as error:  # an AttributeError lets `hasattr` and `inspect.getmembers` skip the package
            raise AttributeError(f"{package}.{name}: {error}") from error

    return get, lambda: sorted({*exported, *packages})
