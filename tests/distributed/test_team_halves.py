"""Teams: two processes learn from halves of each batch or rollout the weights of one with the whole (`team_halves`)."""

from __future__ import annotations

from typing import Any

import pytest
import team_halves
from launching import in_copies
from team_halves import OFF_POLICY, ON_POLICY

pytest.importorskip("accelerate")
pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return in_copies(team_halves.main, tmp_path_factory.mktemp("team-halves"))


@pytest.mark.parametrize("case", [*OFF_POLICY, *ON_POLICY])
def test_halves_of_every_batch_teach_a_team_the_same_as_the_whole(results: list[dict[str, Any]], case: str) -> None:
    for of_rank in results:
        differences = dict(of_rank[case])
        assert differences.pop("moved") > 1e-4
        assert max(differences.values()) < 1e-10, differences
