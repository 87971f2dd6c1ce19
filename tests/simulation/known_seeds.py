"""The seeds that found a bug, or a check that was too strict, in some version of Minka.

Most of these seeds give other runs today, since the code now draws its random numbers differently. They stay in the
list because a run takes only about a second.
"""

from typing import Final

KNOWN: Final[dict[str, tuple[int, ...]]] = {
    "raft": (20219, 1000169, 2000076, 2000929, 2001978),
    "full": (
        *(126, 798, 3179, 100159, 105504, 107725, 201538, 207104, 400130, 400729, 505525, 506964, 700627),
        *(800450, 804286, 813460, 820997, 832193, 834407, 840209, 881100, 883131, 1000169, 2000076, 2000929),
        *(2001066, 2001978, 2012530, 77000154, 77000314, 230738601, 83686845, 920000009, 920000075),
        *(700002419, 700004781),
    ),
    "duties": (5111, 14994, 3900105, 3900173, 77000178, 700000141, 721000369, 760000170),
    "loads": (99564594, 710000147, 720000297, 720000416, 720001579),
}
