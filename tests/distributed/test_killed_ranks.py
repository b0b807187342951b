"""Ranks that are killed or stopped from outside, runs that are started again, and runs beside each other."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from launching import by_hand, ended, torchrun

pytest.importorskip("accelerate")
pytestmark = pytest.mark.slow
NOBODY = "9"  # a rank that there is not


def digests(output: str) -> dict[tuple[int, int], str]:
    """(rank, generation) -> digest."""
    lines = re.findall(r"rank (\d) generation (\d) (\w{64})", output)
    return {(int(rank), int(generation)): digest for rank, generation, digest in lines}


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_other_by_name(tmp_path: Path, victim: int) -> None:
    both = by_hand("killed.py", str(tmp_path), str(victim), str(int(signal.SIGKILL)))
    found = [ended(process) for process in both]
    assert found[victim][0] == -signal.SIGKILL
    status, output = found[1 - victim]
    assert status == 3, output
    assert f"rank {1 - victim} RankError: rank {1 - victim} of 2 was" in output
    assert "another rank has ended" in output


def test_a_rank_that_gives_no_answer_ends_the_other_after_the_timeout(tmp_path: Path) -> None:
    both = by_hand("killed.py", str(tmp_path), "1", str(int(signal.SIGSTOP)), AGILERL_RANKS_TIMEOUT="5")
    status, output = ended(both[0])
    both[1].kill()
    ended(both[1])
    assert status == 3, output
    assert "no answer for 5 seconds" in output


def test_a_run_whose_rank_is_killed_is_started_again_and_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    nobody = torchrun("killed.py", str(tmp_path), NOBODY, "0")
    status, output = ended(nobody)
    assert status == 0, output
    expected = digests(output)
    assert expected[0, 5] == expected[1, 5]
    kill = str(int(signal.SIGKILL))
    each = [ended(torchrun("killed.py", str(tmp_path), "1", kill, str(tmp_path / "run"))) for _ in range(2)]
    assert (tmp_path / "killed").exists()
    assert [status == 0 for status, _ in each] == [False, True], each
    first, second = (digests(output) for _, output in each)
    assert max(generation for _, generation in first) == 2
    assert {**first, **second} == expected
    assert min(generation for _, generation in second) == 2  # which the killed rank had not saved


def test_two_runs_beside_each_other_do_not_meet(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    both = [torchrun("killed.py", str(folder), NOBODY, "0", str(folder / "run")) for folder in folders]
    found = [ended(process) for process in both]
    assert [status for status, _ in found] == [0, 0], found
    first, second = (digests(output) for _, output in found)
    assert first == second
    assert len(first) == 10
