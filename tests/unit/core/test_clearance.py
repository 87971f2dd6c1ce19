"""A node's clearance: the lease that lets it serve."""

from minkad.core.clearance import Clearance


def test_the_time_since_a_clearance_lapsed() -> None:
    clearance = Clearance()
    assert clearance.lapsed(100.0) is None, "there has never been a clearance"
    clearance.grant(10.0, 0.5)
    assert clearance.lapsed(10.4) is None, "the clearance holds"
    assert clearance.lapsed(12.5) == 2.0
    clearance.grant(13.0, 0.5)
    assert clearance.lapsed(13.1) is None
    clearance.grant(14.0, 0.0)
    assert (clearance.lapsed(14.5), clearance.last_held(14.5)) == (1.0, 13.5), "0 seconds grant nothing"
    clearance.revoke()
    assert clearance.lapsed(20.0) is None
