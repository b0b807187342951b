"""The schemes of evolution: what each is, which settings it reads, and where it is implemented."""

from __future__ import annotations

from dataclasses import dataclass

PATH = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"  # of a user's scheme, "module:Class"


@dataclass(frozen=True)
class Scheme:
    """One value of `evolution.scheme`.

    Attributes:
        name: in manifests.
        path: "module:Class" of the `Evolution`, imported by the run that asks for it. The constructor takes by name any
            key of `reads`, `seed`, `members` and `budget` (environment steps of all of them).
        reads: its keys of the section `evolution`.
        mutates: whether its constructor takes `tournament` and `mutation`, built from these sections of the manifest.
        ends_members: whether members stop early and release their steps to the others.
        only_hyperparameters: whether hyperparameters are all that it changes.
        by_returns: whether it compares training returns.
        extra: of this package, which installs what it needs.
        evidence: what measurements say of an experimental scheme; empty for others.
    """

    name: str
    path: str
    reads: tuple[str, ...] = ()
    mutates: bool = False
    ends_members: bool = False
    only_hyperparameters: bool = False
    by_returns: bool = False
    extra: str = ""
    evidence: str = ""


_ROWS = (
    Scheme("tournament", "agilerl.hpo.evolution:TournamentEvolution", mutates=True),
    Scheme(
        "halving", "agilerl.hpo.racing:SuccessiveHalving", ("survivors", "judge", "until"), ends_members=True,
    ),
    Scheme("race", "agilerl.hpo.racing:Race", ("survivors", "certainty"), ends_members=True, by_returns=True),
    Scheme(
        "pbt", "agilerl.hpo.pbt:TruncationSelection", ("interval",), only_hyperparameters=True,
        evidence="with 16 members behind a race on MinAtar/Breakout-v1",
    ),
    Scheme(
        "pb2", "agilerl.experimental.pb2:PopulationBandit", only_hyperparameters=True, extra="bandit",
        evidence="not measured",
    ),
    Scheme(
        "mf_pbt", "agilerl.experimental.mf_pbt:MultipleFrequencies", ("frequencies",), only_hyperparameters=True,
        evidence="not measured",
    ),
)  # fmt: skip
SCHEMES = {row.name: row for row in _ROWS}
READERS = {key: [row.name for row in _ROWS if key in row.reads] for scheme in _ROWS for key in scheme.reads}
"""Key of the section `evolution` -> schemes that read it; the other keys apply to all of them."""


def scheme_of(name: str) -> Scheme:
    """Return the row of a scheme; a user's own ("module:Class") may read everything."""
    return SCHEMES.get(name) or Scheme(name, name, tuple(READERS), mutates=True)
