"""Runs the traces of `quorum/`. Their commands are `committed` and `vote`, for one majority (the argument cfg) or for
two (cfg and cfgj).
"""

from collections.abc import Iterable, Mapping

from minkad.core.raft.quorum import UNBOUNDED, JointConfig, MajorityConfig
from tests.vectors.datadriven import Case

EMPTY = MajorityConfig()


class QuorumDriver:
    """Runs cases that don't depend on each other."""

    def run(self, case: Case) -> str:
        """Run the command of a case; returns the command's output."""
        ids = [int(value) for value in case.values("cfg")]
        joint_values = case.values("cfgj")
        joint_ids = [int(value) for value in joint_values if value != "zero"]
        values = case.values("idx" if case.command == "committed" else "votes")
        config = JointConfig(MajorityConfig(ids), MajorityConfig(joint_ids))
        voters = sorted(config.ids())
        if len(voters) != len(values):
            shown = " ".join(f"{voter}:{{}}" for voter in voters)
            return f"error: mismatched input (explicit or _) for voters map[{shown}]: [{' '.join(values)}]"
        # `values` has a value for each voter, in the order in which cfg and cfgj first name the voters; `_` stands for
        # no value.
        named = dict(zip(dict.fromkeys([*ids, *joint_ids]), values, strict=True))
        given = {voter: value for voter, value in named.items() if value != "_"}
        if case.command == "committed":
            acked = {voter: int(value) for voter, value in given.items()}
            return _committed_joint(config, acked) if joint_values else _committed(config.incoming, acked)
        if case.command == "vote":
            return _vote(config, {voter: value == "y" for voter, value in given.items()}, bool(joint_values))
        return "unknown command"


def _committed(config: MajorityConfig, acked: Mapping[int, int]) -> str:
    index = config.committed_index(acked.get)
    out = _describe(config, acked)
    # All these computations must have the same result. The output has each result that differs.
    for other, how in (
        (_committed_another_way(config, acked), "via alternative computation"),
        (JointConfig(config, EMPTY).committed_index(acked.get), "via zero-joint quorum"),
        (JointConfig(config, config).committed_index(acked.get), "via self-joint quorum"),
        *_overlays(config, acked, index),
    ):
        if other != index:
            out += f"{_index(other)} <-- {how}\n"
    return out + f"{_index(index)}\n"


def _overlays(config: MajorityConfig, acked: Mapping[int, int], index: int) -> Iterable[tuple[int, str]]:
    """Compute the committed index again, with lower indexes for voters whose index is already below it. The committed
    index must stay the same. Yields each result with its description.
    """
    for voter, own in acked.items():
        if voter in config and index > own:
            yield config.committed_index({**acked, voter: own - 1}.get), f"overlaying {voter}->{own}"
            yield config.committed_index({**acked, voter: 0}.get), f"overlaying {voter}->0"


def _committed_another_way(config: MajorityConfig, acked: Mapping[int, int]) -> int:
    """Find the highest index that a quorum of the voters has, by counting the voters for each index."""
    if not config:
        return UNBOUNDED
    quorum = len(config) // 2 + 1
    known = [acked.get(voter, 0) for voter in config]
    return max((index for index in known if sum(other >= index for other in known) >= quorum), default=0)


def _committed_joint(config: JointConfig, acked: Mapping[int, int]) -> str:
    index = config.committed_index(acked.get)
    out = _describe(MajorityConfig(config.ids()), acked)
    swapped = JointConfig(config.outgoing, config.incoming).committed_index(acked.get)
    if swapped != index:
        out += f"{_index(swapped)} <-- via symmetry\n"
    return out + f"{_index(index)}\n"


def _vote(config: JointConfig, votes: Mapping[int, bool], joint: bool) -> str:
    if not joint:
        return f"{config.incoming.vote_result(votes).value}\n"
    result = config.vote_result(votes)
    swapped = JointConfig(config.outgoing, config.incoming).vote_result(votes)
    return (f"{swapped.value} <-- via symmetry\n" if swapped is not result else "") + f"{result.value}\n"


def _index(index: int) -> str:
    return "∞" if index == UNBOUNDED else str(index)


def _describe(config: MajorityConfig, acked: Mapping[int, int]) -> str:
    """Describe each voter in a line: its index, and a bar with one `x` for each voter that has a lower index."""
    if not config:
        return "<empty majority quorum>"
    width = len(config)
    ranked = sorted((acked.get(voter, 0), voter) for voter in config)
    bars = {voter: sum(other < index for other, _ in ranked) for index, voter in ranked}
    out = " " * width + "    idx\n"
    for voter in sorted(config):
        bar = "x" * bars[voter] + ">" + " " * (width - bars[voter]) if voter in acked else "?" + " " * width
        out += f"{bar} {_index(acked.get(voter, 0)):>5}    (id={voter})\n"
    return out
