"""Self-play of two: who sits where, who learns, what fitness is, what stays in the pool; runs go on exactly."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sinks import Kept
from small_envs import ParallelGame
from typer.testing import CliRunner

import agilerl
from agilerl.algorithms.ippo import IPPO
from agilerl.algorithms.mappo import MAPPO
from agilerl.cli import app
from agilerl.collect import collector_for
from agilerl.collect.collector import Shard, Shared
from agilerl.collect.teams.rollouts import TeamRolloutCollector
from agilerl.collect.teams.self_play import (
    Match,
    Opponent,
    Opponents,
    Places,
    Pool,
    SelfPlayCollector,
    SelfPlayGeneration,
)
from agilerl.config import apply_sets, manifest_from, preset_for
from agilerl.core.checkpoint import decode_tree, digest_tree
from agilerl.core.options import LoopOptions
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.envs.protocol import AGENTS, PRESENT
from agilerl.errors import ConfigError, EnvError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.rollouts.episodes import Episodes
from agilerl.rollouts.matches import outcomes
from agilerl.telemetry.files import CsvSink
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.utils.utils import make_multi_agent_vect_envs
from agilerl.vector import SyncPettingZooVecEnv

NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}
TICTACTOE = "pettingzoo.classic.tictactoe_v3"


class Higher(ParallelGame):
    """One step: whoever chooses the higher number gets 1 from the other one."""

    agent_names: tuple[str, ...] = ("player_0", "player_1")
    pot = 0.0  # what both get beside that

    def __init__(self) -> None:
        self.observed = dict.fromkeys(self.agent_names, spaces.Box(0, 1, (2,), np.float32))
        self.acted = dict.fromkeys(self.agent_names, spaces.Discrete(4))

    def observe(self) -> dict[str, np.ndarray]:
        return {agent: np.ones(2, np.float32) for agent in self.observed}

    def rewards(self, actions: dict[str, Any]) -> dict[str, float]:
        one, other = (int(actions[agent]) for agent in self.agent_names[:2])
        gain = float(np.sign(one - other))
        gains = (gain + self.pot, -gain + self.pot)
        return dict.fromkeys(self.agent_names, 0.0) | dict(zip(self.agent_names, gains, strict=False))


def environment(kind: Any = Higher, count: int = 8) -> SyncPettingZooVecEnv:
    return SyncPettingZooVecEnv([kind] * count)


def population(cls: Any = IPPO, size: int = 2, env: Any = None, **more: Any) -> list[Any]:
    found = SelfPlayCollector.spaces(environment() if env is None else env)
    arguments = {"net_config": NET, "lr": 1e-2, "batch_size": 32, "learn_step": 64} | more
    made: list[Any] = cls.population(size, *found, **{"seed": 1} | arguments)
    return made


def train(pop: list[Any], env: Any = None, **more: Any) -> tuple[list[Any], Any]:
    arguments = {"max_steps": 384, "evo_steps": 128, "seed": 3, "verbose": False, "opponents": "self"} | more
    return train_multi_agent_on_policy(environment() if env is None else env, "higher", pop=pop, **arguments)


def always(choice: int, width: int = 8) -> Any:
    """A team that takes one choice of four, whatever it sees."""
    net = {**NET, "head_config": {"hidden_size": [width]}}
    team = population(size=1, net_config=net)[0]
    with torch.no_grad():
        for parameter in team.actors["player"].parameters():
            parameter.zero_()
        last = list(team.actors["player"].parameters())[-1]
        last[choice] = 50.0
    return team


def pool_of(*choices: int) -> Pool:
    return Pool(tuple(Opponent.of(always(choice, 8 + 8 * (k % 2)), k + 1) for k, choice in enumerate(choices)))


def opened(pop: list[Any], env: Any = None, pool: Pool | None = None, **more: Any) -> SelfPlayCollector:
    options = LoopOptions(max_steps=256, evo_steps=128, eval_episodes=16, confirm_episodes=8, opponents="self")
    source = SelfPlayCollector(environment() if env is None else env, options, **more)
    source.open(pop, 7)
    if pool is not None:
        source._sit_down(pool)
    return source


# --- the pool ---------------------------------------------------------------------------------------------------------


def test_a_full_pool_keeps_its_first_and_newest_and_what_lies_between_spread_over_all_generations() -> None:
    team = always(0)
    pool = Pool((Opponent.at_random(team),))
    for generation in range(1, 101):
        pool = pool.joined(Opponent.of(team, generation), most=6)
    times = [one.generation for one in pool.opponents]
    assert times[0] == 0
    assert pool.opponents[0].member is None
    assert times[-1] == 100
    assert len(times) == 6
    gaps = np.diff(times)
    assert gaps.min() > 0
    assert gaps[:-1].max() <= 4 * gaps[:-1].min(), times


def test_who_goes_is_the_one_whose_neighbours_are_closest() -> None:
    team = always(0)
    pool = Pool(tuple(Opponent.of(team, generation) for generation in (0, 10, 12, 13, 20)))
    assert [one.generation for one in pool.joined(Opponent.of(team, 21), most=5).opponents] == [0, 10, 13, 20, 21]


def test_the_random_player_chooses_uniformly_among_the_legal_actions() -> None:
    env = make_multi_agent_vect_envs(TICTACTOE, 1)
    team = population(env=env, size=1)[0]
    opponents, lanes = Opponents(Pool((Opponent.at_random(team),)), team), env.replicate(3000)
    obs, info = lanes.reset()
    first = np.zeros((3000, 2), np.float32)
    first[:, 0] = np.arange(3000) % 3
    obs, info = (lambda batch: (batch.obs, batch.info))(lanes.step(first))
    every = np.arange(3000)
    places, action = Places(every, np.zeros(3000, int), np.ones(3000, int)), np.full((3000, 2), -1.0, np.float32)
    opponents.act(action, obs, info["action_mask"], places, team.draw_exploration(np.random.default_rng(0), (3000,)))
    assert (action[:, 0] == -1).all(), "the other seat is not theirs"
    for taken in range(3):
        counts = np.bincount(action[every % 3 == taken, 1].astype(int), minlength=9)
        assert counts[taken] == 0
        # 1000 draws of 1/8: a standard deviation of 10.5, five of them.
        assert np.abs(np.delete(counts, taken) - 125).max() < 53


def test_opponents_of_other_architectures_act_as_they_would_alone() -> None:
    teams = [population(size=1, seed=k, net_config={**NET, "latent_dim": 8 + 8 * (k == 2)})[0] for k in range(3)]
    opponents = Opponents(Pool(tuple(Opponent.of(team, k) for k, team in enumerate(teams))), teams[0])
    rng = np.random.default_rng(5)
    seen = {agent: rng.random((20, 2)).astype(np.float32) for agent in Higher.agent_names}
    obs = {AGENTS: seen, PRESENT: (rng.random((20, 2)) < 0.7).astype(np.int8)}
    lanes = rng.permutation(20)[:15]
    who, seats = rng.integers(3, size=15), rng.integers(2, size=15)
    draws = teams[0].draw_exploration(rng, (20,))
    action = np.full((20, 2), -1.0, np.float32)
    opponents.act(action, obs, None, Places.sorted(lanes, who, seats), draws)
    wanted = np.full((20, 2), -1.0, np.float32)
    for lane, one, seat in zip(lanes.tolist(), who.tolist(), seats.tolist(), strict=True):
        if obs[PRESENT][lane, seat]:
            rows = {AGENTS: {a: torch.from_numpy(x[[lane]]) for a, x in seen.items()}}
            with torch.no_grad():
                outputs = teams[one].policy_output(rows)
            wanted[lane, seat] = teams[one].explore(outputs, tuple(part[[lane]] for part in draws))[0, seat]
    np.testing.assert_array_equal(action, wanted)
    assert (wanted >= 0).sum() > 5


# --- a generation -----------------------------------------------------------------------------------------------------


def test_opponents_play_one_seat_of_every_second_lane_and_nothing_is_learned_from_them() -> None:
    pop, kept = population(ent_coef=0.0), []

    class Seen(SelfPlayGeneration):
        def _learn(self, group: Any) -> None:
            stored = group.buffer
            kept.append((stored.stored("valid").copy(), stored.stored("reward").copy()))
            super()._learn(group)

    source = opened(pop, pool=pool_of(3))
    shard = Shard(pop, [0, 1], 7, 0, 0, 16, Shared())
    with source.adopted(pop) as learner:
        generation = Seen(shard, source.lanes, learner, source.options, source.evaluator.opponents)
        steps = generation.run()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                tallies = end.value.tallies
                break
    seats = [[False, False], [True, False], [False, False], [False, True]] * 4  # of the opponents
    for valid, reward in kept:
        assert valid.shape == (8, 16, 2)
        np.testing.assert_array_equal(valid, np.broadcast_to(~np.array(seats), valid.shape))
        theirs = reward[:, np.array(seats)]
        assert (theirs >= 0).all(), "who always takes the highest never loses"
        assert (theirs > 0).any()
    for member, tally in tallies.items():
        assert tally.env_steps == 16 * 8
        assert len(tally.scores) == 16 * 4, "one of each episode against an opponent"
        assert set(tally.scores) <= {0.0, -1.0}
        own = np.concatenate([r[:, member * 8 : member * 8 + 8][:, np.array(seats)[:8]] for _, r in kept])
        assert sum(tally.scores) == -own.sum()
    source.close()


def test_seats_move_on_with_the_generations_so_that_one_lane_sees_both() -> None:
    pop, seen = population(size=1), []
    source = opened(pop, environment(count=1), pool_of(1, 2))
    for number in range(4):
        shard = Shard(pop, [0], 7, number, 0, 4, Shared())
        with source.adopted(pop) as learner:
            generation = SelfPlayGeneration(shard, source.lanes, learner, source.options, source.evaluator.opponents)
        seen.append(generation._places.seats.tolist())
    assert seen == [[], [0], [], [1]]
    source.close()


def test_every_opponent_gets_as_many_lanes_as_the_others() -> None:
    pop = population(size=2)
    source = opened(pop, environment(count=24), pool_of(0, 1, 2, 3))
    shard = Shard(pop, [0, 1], 7, 0, 0, 4, Shared())
    with source.adopted(pop) as learner:
        generation = SelfPlayGeneration(shard, source.lanes, learner, source.options, source.evaluator.opponents)
    places = generation._places
    for own in (places.lanes < 24, places.lanes >= 24):
        assert np.bincount(places.who[own]).tolist() == [3, 3, 3, 3]
        assert np.bincount(places.seats[own]).tolist() == [6, 6]
    assert places.who[places.lanes < 24].tolist() == sorted(places.who[places.lanes < 24].tolist())
    source.close()


# --- fitness ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [8, 1])
def test_fitness_is_the_mean_return_from_both_seats_against_the_whole_pool(lanes: int) -> None:
    pop = [always(choice) for choice in (0, 1, 2, 3)]
    for index, team in enumerate(pop):
        team.index = index
    source = opened(pop, environment(count=lanes), pool_of(0, 2), sum_scores=False)
    # Against 0 and 2 in turn: 0 draws and loses, 1 wins and loses, 2 wins and draws, 3 wins twice.
    found = source.evaluator.evaluate(pop, 0)
    assert found.fitness == [-0.5, 0.0, 0.5, 1.0]
    by_agent = {0: [-0.5] * 2, 1: [0.0] * 2, 2: [0.5] * 2, 3: [1.0] * 2}
    assert found.by_agent == by_agent
    assert (source.evaluator.newcomer.member, source.evaluator.newcomer.generation) == (3, 1)
    assert source.evaluator.confirm(pop[1], 0, 8).mean == 0.0
    source.evaluator.confirm(pop[1], 1, 2)  # one seat each: [0, 0] of other episodes
    assert found.by_agent == by_agent, "what an evaluation found is not changed by later ones"
    source.close()


def test_episodes_are_spread_over_the_pool_in_pairs_of_seats() -> None:
    pop = [always(0)]
    opponents = Opponents(pool_of(0, 1, 2, 3), pop[0])
    with_rows = Learner(pop, choose(pop))
    for episodes, wanted in (
        (4, [0, 0, 2, 2]),
        (8, [0, 0, 1, 1, 2, 2, 3, 3]),
        (12, [0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1]),
    ):
        match = Match(with_rows, opponents, episodes, Episodes.of(np.arange(episodes)))
        match.begin_episodes()
        order = np.argsort(match._places.lanes)
        assert match._places.who[order].tolist() == wanted
        assert match._places.seats[order].tolist() == [1, 0] * (episodes // 2)
    with_rows.release()


def test_opponents_play_the_same_against_every_member() -> None:
    pop = [always(3), always(3)]
    pop[1].index = 1
    source = opened(pop)  # the random player
    one, other = source.evaluator.evaluate(pop, 0).fitness
    assert one == other
    assert one == source.evaluator.evaluate(pop[:1], 0).fitness[0]
    assert 0 < one < 1
    later = [source.evaluator.evaluate(pop[:1], generation).fitness[0] for generation in (1, 2)]
    assert later != [one, one]
    source.close()


# --- in the loop ------------------------------------------------------------------------------------------------------


def bits(agents: list[Any]) -> torch.Tensor:
    return torch.cat(
        [p.detach().flatten() for a in agents for n in a.evaluation_networks().values() for p in n.parameters()]
    )


def evolving() -> dict[str, Any]:
    tournament = TournamentSelection(2, True, 2, 1, seed=4)
    return {"tournament": tournament, "mutation": Mutations(0.2, 0.5, 0.3, 0.2, 0.0, 0.0, rand_seed=5)}


@pytest.mark.parametrize("cls", [IPPO, MAPPO])
def test_a_resumed_run_is_the_run_that_never_stopped_pool_and_all(cls: Any, tmp_path: Path) -> None:
    whole, history = train(population(cls), resume=tmp_path / "whole", **evolving())
    train(population(cls), max_steps=256, resume=tmp_path / "parts", **evolving())
    again, rest = train(population(cls), resume=tmp_path / "parts", **evolving())
    assert torch.equal(bits(whole), bits(again))
    assert history == rest
    states = []
    for folder in ("whole", "parts"):
        path = tmp_path / folder / "checkpoints" / "gen-0000000003" / "run.safetensors"
        states.append(decode_tree(path.read_bytes())["source"])
    assert [one["generation"] for one in states[0]["pool"]] == [0, 1, 2]
    assert states[0]["newcomer"]["generation"] == 3
    assert digest_tree(states[0]) == digest_tree(states[1])


def test_a_population_learns_to_beat_its_past() -> None:
    pop, _ = train(population(size=1, ent_coef=0.0, learn_step=256), max_steps=3072, evo_steps=1024, seed=1)
    team = pop[0]
    assert team.get_action({a: np.ones((1, 2), np.float32) for a in Higher.agent_names}, training=False)[0] == {
        "player_0": [3], "player_1": [3],
    }  # fmt: skip


def test_members_train_one_at_a_time_too_and_over_modules() -> None:
    one, _ = train(population(), learner="fused")
    other, _ = train(population(), learner="sequential")
    alone, _ = train(population(), lockstep=False)
    torch.testing.assert_close(bits(one), bits(other), rtol=1e-3, atol=1e-4)
    assert torch.isfinite(bits(alone)).all()
    assert not torch.equal(bits(alone), bits(population()))


def test_the_records_say_which_generations_opponents_are_from(tmp_path: Path) -> None:
    kept = Kept()
    train(population(), sinks=[CsvSink(tmp_path / "metrics.csv"), kept])
    with open(tmp_path / "metrics.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["opponents"] for row in rows][::2] == [
        "random",
        rows[2]["opponents"],
        rows[4]["opponents"],
    ]
    first, second = rows[4]["opponents"].split()[1:]
    assert rows[2]["opponents"] == f"random {first}"
    assert [first.split(":")[0], second.split(":")[0]] == ["1", "2"]
    best = [row["id"] for row in rows if row["is_best"] == "1"]
    assert [first.split(":")[1], second.split(":")[1]] == best[:2]
    assert kept.plan.extra["opponents"] == "self"
    assert any("opponents" in note for note in kept.plan.notes)


def test_the_best_agent_is_the_leader_of_the_last_generation_as_fitness_compares_one_generation_only() -> None:
    kept, elite = Kept(), list[Any]()

    class Hears:
        def on_best(self, agent: Any) -> None:
            elite.append(agent.index)

    train(population(), sinks=[kept], callbacks=[Hears()])
    assert elite == [record.best.id for record in kept.records]


# --- mistakes ---------------------------------------------------------------------------------------------------------


class Three(Higher):
    agent_names = ("player_0", "player_1", "player_2")


class Strangers(Higher):
    agent_names = ("cat_0", "mouse_0")


class Generous(Higher):
    pot = 1.0


def test_what_is_no_game_of_two_is_named() -> None:
    for kind, said in ((Three, "has 3 agents"), (Strangers, "in the groups")):
        with pytest.raises(ConfigError, match=rf"two agents of one group.*{said}"):
            train(population(env=environment(kind)), environment(kind))
    with pytest.raises(EnvError, match=r"returns sum to zero; an episode of teams gave \[1.0, 1.0\]|gave \[2.0, 0.0\]"):
        train(population(env=environment(Generous)), environment(Generous))
    with pytest.raises(ConfigError, match=r"opponents must be 'self'.*got 'selfie'"):
        train(population(), opponents="selfie")


@pytest.mark.parametrize("algo", ["DQN", "PPO", "MADDPG", "MATD3"])
def test_who_has_no_self_play_refuses_it(algo: str) -> None:
    env_id = "mpe2.simple_spread_v3" if algo.startswith("MA") else "CartPole-v1"
    with pytest.raises(ConfigError, match=rf"training.opponents: means nothing to {algo}"):
        apply_sets(preset_for(env_id, algo), ["training.opponents=self"])


def test_manifests_name_it_and_those_without_it_keep_their_hashes() -> None:
    without = manifest_from({"algorithm": "IPPO", "environment": TICTACTOE})
    within = manifest_from({"algorithm": "IPPO", "environment": TICTACTOE, "training": {"opponents": "self"}})
    assert without.training.opponents is None
    assert within.hash() != without.hash()
    with pytest.raises(ConfigError, match=r"training.opponents must be .*got 'pool'"):
        apply_sets(without, ["training.opponents=pool"])
    experience = IPPO.experience
    assert collector_for(experience, "self") is SelfPlayCollector
    assert collector_for(experience, None) is TeamRolloutCollector


def test_a_command_trains_a_game_of_turns_against_itself_and_says_so(tmp_path: Path) -> None:
    sets = ("environment.num_envs=8", "algorithm.learn_step=64", "training.eval_episodes=4", "training.pop_size=2",
            "training.evo_steps=64", "network.latent_dim=8", "network.encoder={hidden_size: [8]}",
            "training.confirm_episodes=0")  # fmt: skip
    arguments = ["train", TICTACTOE, "--algo", "IPPO", "--opponents", "self", "--steps", "128", "--out", str(tmp_path)]
    settings = [part for setting in sets for part in ("--set", setting)]
    done = CliRunner().invoke(app, [*arguments, "--test-episodes", "0", *settings])
    assert done.exit_code == 0, done.output
    run = next((tmp_path / TICTACTOE).iterdir())
    facts = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert facts["opponents"] == "self"
    assert "opponents: self" in (run / "config.yaml").read_text(encoding="utf-8")
    refused = CliRunner().invoke(app, ["train", "CartPole-v1", "--opponents", "self", "--dry-run"])
    assert refused.exit_code == 2
    assert "means nothing to DQN" in refused.output


@pytest.mark.slow
def test_tic_tac_toe_is_learned_so_well_that_it_is_hardly_ever_lost() -> None:
    run = agilerl.train(TICTACTOE, seed=1000, out=None, verbose=False, population=1, steps=200_000)
    for player in ("random", "lookahead"):
        lost = (outcomes(run.best, TICTACTOE, player, 500, 0) == -1).mean()
        assert lost <= 0.05, f"{lost:.1%} lost against the {player} player"


def test_a_target_of_a_fitness_relative_to_opponents_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"opponents='self' .* got target=0.5. fix: target=None"):
        train(population(), target=0.5)
    with pytest.raises(ConfigError, match=r"fix: target=None \(training.target_score=null\)"):
        agilerl.train(Higher, "IPPO", opponents="self", target=0.5, steps=64, out=tmp_path, verbose=False)
    assert not list(tmp_path.iterdir())
