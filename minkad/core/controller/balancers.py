"""All balancers, in the order in which they are asked."""

from collections.abc import Callable
from typing import Final

from minkad.core.controller.balancer import Balancer
from minkad.core.controller.load_balancer import LoadBalancer
from minkad.core.controller.loads import AbandonedLoads
from minkad.core.controller.merge_checker import MergeChecker

BALANCERS: Final[tuple[Callable[[], Balancer], ...]] = (MergeChecker, LoadBalancer, AbandonedLoads)
