"""Errors that the original ships, through the public interface; numbered as where they were collected."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.algorithms.dqn import DQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import create_population, make_vect_envs

OBS = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
ACTIONS = gym.spaces.Discrete(2)
NET = {"encoder_config": {"hidden_size": [32]}, "head_config": {"hidden_size": [32]}, "latent_dim": 16}


def population(size: int = 3, hp_config: HyperparameterConfig | None = None, **INIT_HP: Any) -> list[DQN]:
    return create_population(
        "DQN",
        NET,
        {"LEARN_STEP": 1, "BATCH_SIZE": 8, **INIT_HP},
        observation_space=OBS,
        action_space=ACTIONS,
        hp_config=hp_config,
        population_size=size,
        seed=4,
    )


def batch(seed: int = 0, size: int = 16) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(size, 4, generator=g),
        "action": torch.randint(0, 2, (size, 1), generator=g),
        "reward": torch.randn(size, 1, generator=g),
        "next_obs": torch.randn(size, 4, generator=g),
        "done": torch.zeros(size, 1),
    }


def moments(agent: DQN) -> dict[str, tuple[torch.Tensor, torch.Tensor, float]]:
    """First moment, second moment, steps by parameter name."""
    state = agent.optimizer.optimizer.state
    return {
        name: (state[p]["exp_avg"].clone(), state[p]["exp_avg_sq"].clone(), float(state[p]["step"]))
        for name, p in agent.actor.named_parameters()
    }


# --- 2


def test_2_clones_share_no_adam_state_with_parent_elite_or_siblings() -> None:
    pop = population(3)
    for agent in pop:
        agent.learn(batch())
        agent.fitness.append(float(agent.index))
    elite, children = TournamentSelection(2, True, 3, seed=1).select(pop)
    family = [*pop, elite, *children]
    before = [moments(a) for a in family]
    for i, trained in enumerate(family):
        trained.learn(batch(i + 1))
        for j, other in enumerate(family):
            same = all(
                torch.equal(new, old)
                for name in before[j]
                for new, old in zip(moments(other)[name][:2], before[j][name][:2], strict=True)
            )
            assert same == (j > i), f"training member {i} {'did not reach itself' if j == i else f'moved member {j}'}"


# --- 4

LENGTHS = {0: [1, 3, 2], 1: [4, 2], 2: [2, 5]}


class Countdown(gym.Env[np.ndarray, int]):
    """Observation (lane, episode, time); episodes end by `terminated` and `truncated` in turn; reward = time."""

    observation_space = gym.spaces.Box(-1, 1000, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, lane: int) -> None:
        self.lane, self.episode, self.time = lane, -1, 0

    def _obs(self) -> np.ndarray:
        return np.array([self.lane, self.episode, self.time], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.episode, self.time = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        end = self.time == LENGTHS[self.lane][self.episode % len(LENGTHS[self.lane])]
        by_terminal = self.episode % 2 == 0
        return self._obs(), float(self.time), end and by_terminal, end and not by_terminal, {}


@pytest.mark.parametrize("custom_loop_agent", [False, True], ids=["engine", "own learn()"])
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda m: m.name)
def test_4_autoreset_rows_never_enter_the_replay_and_final_observations_do(
    mode: AutoresetMode, custom_loop_agent: bool
) -> None:
    class CustomLearn(DQN):
        def learn(self, experiences: Any) -> float:
            return super().learn(experiences)

    cls = CustomLearn if custom_loop_agent else DQN
    pop = cls.population(1, Countdown.observation_space, Countdown.action_space, seed=1, net_config=NET, batch_size=8)
    env = SyncVectorEnv([lambda lane=lane: Countdown(lane) for lane in LENGTHS], autoreset_mode=mode)
    memory = ReplayBuffer(max_size=1000, seed=0)
    train_off_policy(env, "countdown", pop=pop, memory=memory, max_steps=120, evo_steps=120, eval_steps=1,
                     verbose=False, seed=1)  # fmt: skip
    rows = {k: memory.storage[k][: len(memory)].numpy() for k in ("obs", "next_obs", "reward", "done")}
    resets = 0
    seen: set[tuple[float, ...]] = set()
    for obs, after, (reward,), (done,) in zip(*rows.values(), strict=True):
        (lane, episode, time), key = obs, tuple(obs)
        assert key not in seen
        seen.add(key)
        assert after.tolist() == [lane, episode, time + 1], "the observation after this one, in the same episode"
        assert reward == time + 1
        length = LENGTHS[int(lane)][int(episode) % len(LENGTHS[int(lane)])]
        assert time < length
        assert bool(done) == (time + 1 == length and episode % 2 == 0), "done means terminated only"
        resets += time + 1 == length
    # 40 vector steps of 3 lanes; NEXT_STEP spends one of a lane's steps on each reset (but the last ones).
    lost = 120 - len(memory)
    assert resets > 30
    assert resets - 3 <= lost <= resets if mode is AutoresetMode.NEXT_STEP else lost == 0


# --- 5, 6, 7, 8


def test_5_every_agent_owns_its_hyperparameter_configuration() -> None:
    given = HyperparameterConfig(lr=RLParameter(1e-5, 1e-1))
    pop = population(4, given, LR=1e-3)
    assert len({id(a.registry.hp_config["lr"]) for a in pop} | {id(given["lr"])}) == 5
    Mutations(0, 0, 0, 0, 0, 1, rand_seed=1).mutation(pop, pre_training_mut=True)
    for agent in pop:  # one step each from its own value; shared state would compound to 0.64e-3, 1.44e-3, ...
        assert min(abs(agent.lr - 0.8e-3), abs(agent.lr - 1.2e-3)) < 1e-12
    assert len({a.lr for a in pop}) == 2
    pop[0].lr = 5e-3
    Mutations(0, 0, 0, 0, 0, 1, rand_seed=1).mutation(pop[:1])
    assert min(abs(pop[0].lr - 4e-3), abs(pop[0].lr - 6e-3)) < 1e-12, "the live value is the truth, not a cached one"
    assert given["lr"].value is None


@pytest.mark.parametrize("tournament_size", [1, 2, 3])
def test_6_a_nan_fitness_never_wins(tournament_size: int) -> None:
    for seed in range(20):
        pop = population(3)
        for agent, fitness in zip(pop, [1.0, float("nan"), 3.0], strict=True):
            agent.fitness = [fitness]
        selection = TournamentSelection(tournament_size, True, 3, seed=seed)
        elite, chosen = selection.select(pop)
        assert elite.index == chosen[0].index == selection.parents[0] == 2
        if tournament_size == 3:
            # a tournament is lost to the NaN only if all three draws are the NaN member
            assert selection.parents.count(1) <= 1


def test_6_a_nan_fitness_is_neither_the_best_of_a_run_nor_reaches_its_target() -> None:
    class Scored(DQN):
        def learn(self, experiences: Any) -> float:
            return super().learn(experiences)

        def test(self, env: Any, swap_channels: bool = False, max_steps: int | None = None, loop: int = 1) -> float:
            self.fitness.append({1: float("nan"), 2: 7.0}.get(self.index, 5.0))  # a copy takes the NaN's place
            return self.fitness[-1]

    pop = Scored.population(3, OBS, ACTIONS, seed=1, net_config=NET)
    env = make_vect_envs("CartPole-v1", num_envs=2)
    for target, generations in ((8.0, 3), (6.0, 1)):
        _, fitness = train_off_policy(env, "CartPole-v1", pop=[a.clone() for a in pop], memory=ReplayBuffer(500),
                                      max_steps=60, evo_steps=20, target=target, verbose=False, seed=1)  # fmt: skip
        assert len(fitness) == generations
    env.close()


@pytest.mark.parametrize("start", [1, 2, 3, 4])
def test_7_integer_hyperparameters_can_grow_from_every_value(start: int) -> None:
    (agent,) = population(1, HyperparameterConfig(learn_step=RLParameter(1, 120)), LEARN_STEP=start)
    mutations = Mutations(0, 0, 0, 0, 0, 1, rand_seed=start)
    seen = set()
    for _ in range(60):
        before = agent.learn_step
        mutations.mutation([agent])
        assert agent.mut == "learn_step"
        assert type(agent.learn_step) is int
        assert agent.learn_step != before, "an integer moves by at least one"
        seen.add(agent.learn_step)
    assert max(seen) > start
    assert min(seen) >= 1


def test_8_rand_seed_reproduces_architecture_mutations() -> None:
    def evolve(rand_seed: int) -> list[Any]:
        pop = population(4)
        mutations = Mutations(0, 1, 0.4, 0, 0, 0, rand_seed=rand_seed)
        for _ in range(4):
            pop = mutations.mutation(pop)
        return [(a.mut, a.actor.describe(), [p.tolist() for p in a.actor.parameters()]) for a in pop]

    np.random.seed(1)
    first = evolve(3)
    np.random.seed(2)
    torch.rand(5)
    assert evolve(3) == first, "the widths, the labels and the new weights"
    assert [m[1] for m in evolve(4)] != [m[1] for m in first]


# --- 9


def trained(**config: RLParameter) -> DQN:
    (agent,) = population(1, HyperparameterConfig(**config))
    for i in range(20):
        agent.learn(batch(i))
    return agent


def test_9_a_learning_rate_mutation_touches_no_moment_and_takes_effect() -> None:
    agent = trained(lr=RLParameter(1e-5, 1e-1))
    twin = agent.clone()
    before = moments(agent)
    Mutations(0, 0, 0, 0, 0, 1, rand_seed=1).mutation([agent])
    assert agent.mut == "lr"
    assert agent.lr != twin.lr
    for name, (first, second, steps) in moments(agent).items():
        assert torch.equal(first, before[name][0])
        assert torch.equal(second, before[name][1])
        assert steps == 20
    # The next Adam step of the two differs by exactly the ratio of the learning rates.
    old = [p.detach().clone() for p in agent.actor.parameters()]
    agent.learn(batch(99))
    twin.learn(batch(99))
    for p, q, o in zip(agent.actor.parameters(), twin.actor.parameters(), old, strict=True):
        torch.testing.assert_close((p - o) / agent.lr, (q - o) / twin.lr, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("kind", ["architecture", "parameters", "activation", "batch_size"])
def test_9_every_other_mutation_carries_the_moments(kind: str) -> None:
    agent = trained(batch_size=RLParameter(4, 64))
    before = moments(agent)
    weights = {"architecture": 0.0, "parameters": 0.0, "activation": 0.0, "rl_hp": 0.0}
    weights[kind if kind in weights else "rl_hp"] = 1.0
    Mutations(0, new_layer_prob=0.0, rand_seed=2, removal=False, **weights).mutation([agent])
    assert agent.mut not in (None, "None")
    after = moments(agent)
    carried = 0
    for name, (first, second, steps) in after.items():
        assert steps == 20
        if first.shape == before[name][0].shape:
            assert torch.equal(first, before[name][0]), name
            assert torch.equal(second, before[name][1]), name
        else:  # grown: old entries stay where they were, new ones start at zero
            block = tuple(slice(0, n) for n in before[name][0].shape)
            assert torch.equal(first[block], before[name][0])
            assert first.count_nonzero() == first[block].count_nonzero()
        carried += int(first.abs().sum() > 0)
    assert carried == len(after)


# --- 17, 18, 20


@pytest.mark.parametrize("delay", [0, 100, 300])
def test_17_learning_delay_beyond_the_capacity_of_the_buffer_still_starts_learning(delay: int) -> None:
    pop = population(1)
    env = make_vect_envs("CartPole-v1", num_envs=4)
    train_off_policy(env, "CartPole-v1", pop=pop, memory=ReplayBuffer(max_size=64), max_steps=400, evo_steps=400,
                     eval_steps=5, learning_delay=delay, verbose=False, seed=1)  # fmt: skip
    env.close()
    state = pop[0].optimizer.state_dict()["state"]
    # Every vector step stores 4 rows and makes 4 updates. Updates begin when MORE than `delay` rows were ever stored
    # (and a batch of 8 is there).
    first = max(delay // 4 + 1, 2)
    assert float(state[0]["step"]) == 4 * (100 - first + 1)


@pytest.mark.parametrize(("target", "generations"), [(-1.0, 1), (1e9, 4)])
def test_18_target_stops_after_the_first_generation_that_reaches_it(target: float, generations: int) -> None:
    pop = population(2)
    env = make_vect_envs("CartPole-v1", num_envs=2)
    trained, fitness = train_off_policy(env, "CartPole-v1", pop=pop, memory=ReplayBuffer(500), max_steps=80,
                                        evo_steps=20, target=target, verbose=False, seed=1)  # fmt: skip
    env.close()
    assert len(fitness) == generations
    assert {a.steps[-1] for a in trained} == {20 * generations}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_20_evaluation_restores_the_training_mode(training: bool, fails: bool) -> None:
    (agent,) = population(1)
    agent.set_training_mode(training)
    env = make_vect_envs("CartPole-v1", num_envs=2)
    if fails:
        with pytest.raises(ValueError, match="loop"):
            agent.test(env, loop=0)
    else:
        during: list[bool] = []
        agent.actor.register_forward_hook(lambda module, *_: during.append(module.training))
        agent.test(env, max_steps=5)
        assert during == [False] * 5
    assert agent.training is training
    assert agent.actor.training is training
    assert agent.actor.encoder.training is training
    env.close()


# --- 26


def limited(**limits: Any) -> DQN:
    config = {"hidden_size": [32], "min_hidden_layers": 1, "max_hidden_layers": 1, **limits}
    net = {"encoder_config": config, "head_config": dict(config), "latent_dim": 8, "min_latent_dim": 8,
           "max_latent_dim": 8}  # fmt: skip
    agent = DQN(OBS, ACTIONS, net_config=net, seed=1)
    for i in range(5):
        agent.learn(batch(i))
    return agent


def test_26_a_mutation_at_its_limits_changes_nothing_and_says_none() -> None:
    agent = limited(min_mlp_nodes=32, max_mlp_nodes=32)
    networks = (agent.actor, agent.actor_target, agent.optimizer.optimizer)
    before, weights = moments(agent), [p.clone() for p in agent.actor.parameters()]
    for seed in range(10):
        Mutations(0, 1, 0.5, 0, 0, 0, rand_seed=seed).mutation([agent])
        assert agent.mut == "None"
    assert all(a is b for a, b in zip(networks, (agent.actor, agent.actor_target, agent.optimizer.optimizer),
                                      strict=True)), "nothing is rebuilt"  # fmt: skip
    assert all(torch.equal(p, w) for p, w in zip(agent.actor.parameters(), weights, strict=True))
    assert all(torch.equal(moments(agent)[k][0], v[0]) for k, v in before.items())


def test_26_hyperparameter_and_activation_without_an_alternative_say_none() -> None:
    (agent,) = population(1, HyperparameterConfig(lr=RLParameter(1e-3, 1e-3)), LR=1e-3)
    Mutations(0, 0, 0, 0, 0, 1, rand_seed=1).mutation([agent])
    assert (agent.mut, agent.lr) == ("None", 1e-3)
    Mutations(0, 0, 0, 0, 1, 0, activation_selection=["ReLU"], rand_seed=1).mutation([agent])
    assert (agent.mut, agent.actor.activation) == ("None", "ReLU")


@pytest.mark.parametrize("method", ["remove_node", "remove_layer", "head_net.remove_layer", "encoder.remove_node"])
def test_26_removal_at_the_minimum_never_adds(method: str) -> None:
    agent = limited(min_mlp_nodes=32, max_mlp_nodes=500)
    network = agent.actor if "." in method else agent.actor.head_net
    count = sum(p.numel() for p in network.parameters())
    network.apply_mutation(method)
    assert sum(p.numel() for p in network.parameters()) == count
    assert network.last_mutation_attr is None
    for seed in range(8):  # and evolution offers what grows only
        twin = agent.clone()
        Mutations(0, 1, 0.5, 0, 0, 0, rand_seed=seed).mutation([twin])
        assert "remove" not in str(twin.mut)
        assert "add" in str(twin.mut)


def test_26_parameter_noise_stays_at_the_scale_of_the_layer() -> None:
    agent = trained()
    changed: set[str] = set()
    for seed in range(12):
        twin = agent.clone()
        Mutations(0, 0, 0, 1, 0, 0, rand_seed=seed).mutation([twin])
        assert twin.mut == "param"
        for (name, p), q in zip(twin.actor.named_parameters(), agent.actor.parameters(), strict=True):
            if not torch.equal(p, q):
                changed.add(name)
                assert p.std() < 2 * q.std() + 0.1, "the original resets to N(0, 1) whatever the layer's scale"
    assert any(name.endswith("weight") for name in changed)
