"""Two processes train one population: what they compute, decide, save and do when one of them fails.

All of it happens in one start of two processes (`two_ranks.py`), whose findings the tests compare.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launching import ended, torchrun, written
from two_ranks import TARGET_KL, Tagged, population

from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.errors import RunError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs

pytest.importorskip("accelerate")
Found = list[dict[str, Any]]
PROMPT = 30.0  # seconds; the timeout is 600


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    status, output = ended(torchrun("two_ranks.py", str(folder)))
    assert status == 0, output
    return written(folder)


@pytest.mark.parametrize("how", ["fused", "sequential"])
@pytest.mark.parametrize("algo", ["DQN", "TD3", "PPO"])
def test_halves_of_a_batch_on_two_ranks_teach_what_the_whole_batch_teaches_one(
    found: Found, algo: str, how: str
) -> None:
    assert found[0]["gradients"]["moved"] > 1e-4  # there was something to learn
    for own in found:
        assert own["gradients"][f"{algo} {how}"] < 1e-12  # float64


@pytest.mark.parametrize("how", ["fused", "sequential"])
def test_epochs_end_by_the_divergence_of_the_whole_batch(found: Found, how: str) -> None:
    epochs, expected = found[0]["gradients"][f"PPO {how} epochs"]
    assert epochs == expected == found[1]["gradients"][f"PPO {how} epochs"][0]
    assert max(epochs) == 6
    assert min(epochs) < 6, f"nobody stops at target_kl={TARGET_KL}"


@pytest.mark.parametrize("algo", ["DQN", "PPO", "TD3", "sequential"])
def test_ranks_hold_one_population_through_architecture_mutations(found: Found, algo: str) -> None:
    first, second = (own["runs"][algo] for own in found)
    assert len(set(first["digests"])) == 3
    assert first["digests"] == second["digests"]
    assert first["history"] == second["history"]
    assert first["networks"] == second["networks"]
    assert len(set(first["networks"])) > 1
    assert first["steps"] == second["steps"] == [96, 96, 96]  # of both ranks together


@pytest.mark.parametrize("algo", ["DQN", "PPO", "TD3", "sequential"])
def test_every_rank_learns_from_its_own_experience(found: Found, algo: str) -> None:
    assert [own["runs"][algo]["tags"] for own in found] == [[0.0], [1.0]]


def test_statistics_of_observations_are_those_of_all_ranks(found: Found) -> None:
    first, second = (own["scaled"] for own in found)
    assert first["digests"] == second["digests"]
    # The tag, 0 on one rank and 1 on the other, has the mean 1/2 and the deviation 1/2.
    assert first["statistics"] == second["statistics"]
    assert first["statistics"]["mean"][0] == pytest.approx(0.5)
    assert first["statistics"]["var"][0] == pytest.approx(0.25)


def test_fitness_is_the_mean_over_the_episodes_of_all_ranks(found: Found) -> None:
    assert found[0]["runs"]["DQN"]["history"] == [[4.0] * 3] * 3  # 0 on one rank, 8 on the other


def test_a_divergence_that_one_rank_sees_ends_the_epochs_of_both(found: Found) -> None:
    stopped, others = ([own["decisions"][name] for own in found] for name in ("kl", "no kl"))
    assert stopped[0]["digests"] == stopped[1]["digests"]
    assert stopped[0]["minibatches"] == stopped[1]["minibatches"]
    assert others[0]["minibatches"] == 5 * stopped[0]["minibatches"]  # after one epoch of five


def test_a_loss_that_is_no_number_on_one_rank_quarantines_the_member_on_both(found: Found) -> None:
    first, second = (own["decisions"]["loss"] for own in found)
    assert first["digests"] == second["digests"]
    assert first["history"] == second["history"] == [[-np.inf, 4.0, 4.0]] * 2


def test_where_all_members_of_one_rank_have_diverged_both_ranks_end_by_name(found: Found) -> None:
    assert [own["decisions"]["all actions"]["kind"] for own in found] == ["DivergedError"] * 2


def test_members_learn_once_the_memory_of_every_rank_holds_their_share_of_a_batch(found: Found) -> None:
    first, second = (own["decisions"] for own in found)
    # Each of 8 vector steps brings 6 rows to a rank's memory, from 2 lanes of 3 members, and an update of shares of 4
    # rows. Where rank 1 has 6 rows fewer, nobody learns in the first one.
    assert first["as many rows"] == second["as many rows"] == 8
    assert first["fewer rows"] == second["fewer rows"] == 7


def test_a_target_is_reached_by_the_mean_of_all_ranks(found: Found) -> None:
    for own in found:
        assert len(own["decisions"]["target of one rank"]) == 2  # 7: rank 1 alone has it
        assert len(own["decisions"]["target of both"]) == 1  # 4


def test_a_callback_of_rank_0_stops_all_ranks(found: Found) -> None:
    assert [len(own["decisions"]["callback"]) for own in found] == [2, 2]


def test_a_run_that_goes_on_equals_one_that_never_stopped(found: Found) -> None:
    for own in found:
        saved = own["saved"]
        assert saved["whole"] == own["runs"]["DQN"]["digests"]  # saving changes nothing
        assert saved["first half"] + saved["second half"] == saved["whole"]
        assert saved["rollouts"] == own["scaled"]["digests"]
        assert saved["refused"]["kind"] == "RunError"


def test_where_one_rank_has_saved_less_all_go_on_from_there(found: Found) -> None:
    for own in found:
        assert own["saved"]["uneven"] == own["saved"]["whole"][1:]


def test_only_rank_0_writes_into_the_folder_of_the_run(found: Found, folder: Path) -> None:
    names = {path.name for path in (folder / "whole").iterdir()}
    assert "rank-1" in names
    assert (folder / "whole" / "checkpoints").is_dir()
    assert not (folder / "whole" / "rank-0").exists()


def test_a_run_of_two_processes_does_not_go_on_in_one(found: Found, folder: Path) -> None:
    env = make_vect_envs(make_env=lambda: Tagged(0), num_envs=2, should_async_vector=False)
    with pytest.raises(RunError, match=r"of a run of 2 processes, .*; here is 1\. fix: start 2"):
        train_off_policy(
            env, "Tagged", pop=population("DQN", env, {}), memory=ReplayBuffer(200), max_steps=96, evo_steps=32, seed=5,
            verbose=False, tournament=TournamentSelection(2, True, 3, 1, seed=1),
            mutation=Mutations(1, 0, 0, 0, 0, 0, rand_seed=4), resume=folder / "halves",
        )  # fmt: skip


@pytest.mark.parametrize(("case", "fails"), [("while learning", 1), ("rank 0", 0)])
def test_a_rank_that_raises_ends_the_other_at_once_and_by_name(found: Found, case: str, fails: int) -> None:
    own, other = found[fails]["failures"][case], found[1 - fails]["failures"][case]
    assert (own["kind"], own["said"]) == ("ValueError", "of this rank alone")
    assert other["kind"] == "RankError"
    assert "another rank has ended" in other["said"]
    assert other["seconds"] < PROMPT


def test_ranks_that_are_asked_for_different_things_are_told(found: Found) -> None:
    for own in found:
        assert own["failures"]["other arguments"]["kind"] == "RankError"
        assert "max_steps" in own["failures"]["other arguments"]["said"]


def test_ranks_whose_weights_differ_end_by_name(found: Found) -> None:
    for own in found:
        assert own["failures"]["other weights"]["kind"] == "RankError"
        assert "the weights of the ranks [1]" in own["failures"]["other weights"]["said"]


def test_after_an_error_the_same_processes_can_train_again(found: Found) -> None:
    for own in found:
        assert own["failures"]["afterwards"] == own["runs"]["DQN"]["digests"]
