"""The PPO agent: what it acts, takes, refuses, copies and saves."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_envs import Episodes

import agilerl.errors
from agilerl.algorithms import PPO
from agilerl.algorithms.base.observation_statistics import ALONE
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.errors import AgileRLError, AgileRLWarning, AlgorithmError
from agilerl.hpo.mutation import Mutations
from agilerl.networks.actors import SharedActorCritic
from agilerl.rollouts.on_policy import collect_rollouts, collect_rollouts_recurrent
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import create_population, make_vect_envs

OBS = gym.spaces.Box(-1, 1, (3,))
BOX = gym.spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32))
NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 8}
LSTM = {
    "encoder_config": {"hidden_state_size": 16, "min_hidden_state_size": 8},
    "head_config": {"hidden_size": [16]},
    "latent_dim": 8,
}
SPACES: list[tuple[gym.Space, tuple[int, ...]]] = [
    (gym.spaces.Discrete(3), ()),
    (gym.spaces.Discrete(3, start=5), ()),
    (gym.spaces.MultiDiscrete([2, 3]), (2,)),
    (gym.spaces.MultiBinary(4), (4,)),
    (BOX, (2,)),
]


def agent(space: gym.Space = SPACES[0][0], obs: gym.Space = OBS, **more: Any) -> PPO:
    return PPO(obs, space, **{"net_config": NET, "seed": 1, **more})


def seen(count: int = 5) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (count, 3)).astype(np.float32)


@pytest.mark.parametrize(("space", "shape"), SPACES, ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("share", [False, True], ids=["separate", "shared"])
def test_actions_are_four_arrays_and_the_environment_takes_them(
    space: Any, shape: tuple[int, ...], share: bool
) -> None:
    ppo = agent(space, share_encoders=share)
    for training in (True, False):
        action, log_prob, entropy, value = ppo.get_action(seen(), training=training)
        assert action.shape == (5, *shape)
        assert log_prob.shape == entropy.shape == value.shape == (5,)
        taken = ppo.environment_action(action) if training else action
        assert all(space.contains(a) for a in taken)
    np.testing.assert_allclose(ppo.critic(seen()).detach().numpy()[:, 0], value, rtol=1e-6)
    one = ppo.get_action(seen()[0])
    assert one[0].shape == (1, *shape)


def test_box_actions_are_stored_as_drawn_and_clipped_for_the_environment() -> None:
    ppo = agent(BOX, action_std_init=50.0, net_config={**NET, "min_latent_dim": 4})
    action = ppo.get_action(seen(200))[0]
    assert (np.abs(action) > 5).any()
    clipped = ppo.environment_action(action)
    assert clipped.min() >= -1
    assert (clipped <= BOX.high).all()


def test_squashed_actions_are_scaled_to_the_bounds() -> None:
    ppo = agent(BOX, net_config={**NET, "squash_output": True})
    action, log_prob, entropy, _ = ppo.get_action(seen(100))
    assert ppo.actor.squash_output
    assert (np.abs(action) <= 1).all()
    np.testing.assert_allclose(ppo.environment_action(action), ppo.actor.scale_action(action), rtol=1e-6)
    np.testing.assert_array_equal(entropy, -log_prob)


def test_masks_hold_while_sampling_and_while_choosing() -> None:
    ppo = agent()
    mask = np.tile([True, False, True], (200, 1))
    assert (ppo.get_action(seen(200), action_mask=mask)[0] != 1).all()
    assert (ppo.get_action(seen(200), action_mask=mask, training=False)[0] != 1).all()
    with pytest.raises(AgileRLError, match="allows no action"):
        ppo.get_action(seen(2), action_mask=np.zeros((2, 3)))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size must be an integer of at least 1; got 0"),
    ({"update_epochs": 1.5}, "update_epochs must be an integer"),
    ({"gae_lambda": 1.5}, r"gae_lambda must be in \[0, 1\]; got 1.5"),
    ({"clip_coef": 0}, "clip_coef must be above 0"),
    ({"max_grad_norm": -1}, "max_grad_norm must be above 0"),
    ({"target_kl": 0}, "target_kl must be above 0"),
    ({"lr_schedule": "cosin"}, "unknown lr_schedule 'cosin'"),
    ({"bptt_sequence_type": "chunk"}, "unknown bptt_sequence_type 'chunk'. Did you mean 'chunked'"),
    ({"recurrent": True, "max_seq_len": 0, "net_config": LSTM}, "max_seq_len must be an integer of at least 1"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[next(iter(a)) for a, _ in BAD])
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(AgileRLError, match=message):
        agent(**arguments)


def test_actions_that_no_policy_can_take_are_refused() -> None:
    with pytest.raises(AlgorithmError, match=r"PPO needs Box, Dict, .* or Tuple actions; got Text"):
        agent(gym.spaces.Text(3))


def test_learning_from_nothing_says_what_to_do() -> None:
    with pytest.raises(AgileRLError, match=r"empty rollout buffer. fix: collect_rollouts\(agent, env\)"):
        agent().learn()
    with pytest.raises(AgileRLError, match="expected a tuple of 8"):
        agent().learn((1, 2, 3))
    zero = [np.zeros(1)] * 2
    with pytest.raises(AgileRLError, match=r"got 1 entries in dones for 2 observations. fix: dones.append\(done\)"):
        agent().learn(([seen(1)] * 2, zero, zero, zero, [0], zero, seen(1), np.zeros(1)))


def test_dones_that_hold_themselves_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agilerl.errors, "_warned", set())
    dones: list[Any] = []
    dones += [dones, dones]
    zero = [np.zeros(1)] * 2
    experiences = ([seen(1)] * 2, zero, zero, zero, dones, zero, seen(1), np.zeros(1))
    with pytest.warns(AgileRLWarning, match=r"fix: dones.append\(done\)"):
        agent().learn(experiences)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent().learn(experiences)


def test_schedules_lower_what_the_update_uses_and_not_the_attribute() -> None:
    ppo = agent(lr=1e-2, clip_coef=0.2, lr_schedule="linear", clip_schedule="linear")
    ppo.progress = 0.75
    hyper = ppo.update_hyperparameters()
    assert hyper["lr"] == pytest.approx(2.5e-3)
    assert hyper["clip_coef"] == pytest.approx(0.05)
    assert (ppo.lr, ppo.clip_coef) == (1e-2, 0.2)


@pytest.mark.parametrize("share", [False, True], ids=["separate", "shared"])
@pytest.mark.parametrize("recurrent", [False, True], ids=["feed_forward", "recurrent"])
def test_a_saved_agent_acts_as_before_and_a_clone_shares_nothing(tmp_path: Path, share: bool, recurrent: bool) -> None:
    ppo = agent(
        BOX, share_encoders=share, recurrent=recurrent, net_config=LSTM if recurrent else NET, num_envs=2,
        learn_step=16, normalize_observations=True,
    )  # fmt: skip
    env = make_vect_envs(make_env=lambda: _Env(BOX), num_envs=2)
    collect_rollouts(ppo, env)
    ppo.learn()
    ppo.save_checkpoint(tmp_path / "agent.pt")
    other = agent(
        BOX, share_encoders=share, recurrent=recurrent, net_config=LSTM if recurrent else NET,
        normalize_observations=True, seed=9,
    )  # fmt: skip
    other.load_checkpoint(tmp_path / "agent.pt")
    twin = ppo.clone(7)
    for made in (other, twin):
        for ours, theirs in zip(ppo.get_action(seen(), training=False)[:4], made.get_action(seen(), training=False)[:4],
                                strict=True):  # fmt: skip
            np.testing.assert_array_equal(ours, theirs)
    assert float(ppo.actor.get_buffer("obs_mean").abs().sum()) > 0
    assert other._minibatches.random() == pytest.approx(np.random.Generator(_copied(ppo._minibatches)).random(), abs=0)
    before = [p.clone() for p in twin.actor.parameters()]
    collect_rollouts(ppo, env)
    ppo.learn()
    assert all(torch.equal(p, q) for p, q in zip(before, twin.actor.parameters(), strict=True))
    env.close()


def _copied(rng: np.random.Generator) -> np.random.BitGenerator:
    """A bit generator in the same state."""
    made = np.random.PCG64()
    made.state = rng.bit_generator.state
    return made


class _Env(Episodes):
    """Random observations; the reward is the first of them; episodes of seven steps."""

    length, is_cut = 7, True

    def __init__(self, space: gym.Space) -> None:
        self.observation_space, self.action_space = OBS, space

    def observe(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        obs, _, *ends = super().step(action)
        return obs, float(obs[0]), *ends


@pytest.mark.parametrize(("space", "shape"), SPACES, ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("learner", ["fused", "sequential"])
def test_populations_of_every_action_space_train_and_evolve(space: Any, shape: tuple[int, ...], learner: str) -> None:
    from agilerl.hpo.tournament import TournamentSelection

    env = make_vect_envs(make_env=lambda: _Env(space), num_envs=2)
    pop = create_population(
        "PPO", NET, {"LEARN_STEP": 10, "BATCH_SIZE": 8, "UPDATE_EPOCHS": 2}, OBS, space, population_size=3, num_envs=2,
        seed=1,
    )  # fmt: skip
    pop[1].learn_step = 20
    pop, fitness = train_on_policy(
        env, "random", pop=pop, max_steps=60, evo_steps=30, tournament=TournamentSelection(2, True, 3, seed=1),
        mutation=Mutations(0.2, 0.3, 0.2, 0.2, 0.1, 0.2, rand_seed=1), verbose=False, seed=1, learner=learner,
    )  # fmt: skip
    assert np.shape(fitness) == (2, 3)
    # Whole rollouts: 30 steps are 3 of 10 or 2 of 20 environment steps.
    assert {a.steps[-1] for a in pop} <= {60, 70, 80}
    env.close()


def test_one_member_at_a_time_and_lockstep_give_every_member_whole_rollouts() -> None:
    env = make_vect_envs("CartPole-v1", num_envs=4)
    spaces = env.single_observation_space, env.single_action_space
    for lockstep in (True, False):
        pop = PPO.population(2, *spaces, seed=1, net_config=NET, learn_step=48, batch_size=16)
        pop[1].learn_step = 80
        train_on_policy(env, "CartPole-v1", pop=pop, max_steps=100, evo_steps=100, verbose=False, seed=3,
                        lockstep=lockstep, eval_steps=5)  # fmt: skip
        assert [a.steps[-1] for a in pop] == [144, 160]
    env.close()


def test_a_collecting_function_of_the_user_is_called_for_every_rollout() -> None:
    env = make_vect_envs("CartPole-v1", num_envs=4)
    pop = PPO.population(
        2, env.single_observation_space, env.single_action_space, seed=1, net_config=NET, learn_step=64
    )
    calls: list[tuple[int, int, bool]] = []

    def collect(agent: PPO, env: Any, n_steps: int, **carried: Any) -> Any:
        calls.append((agent.index, n_steps, bool(carried)))
        return collect_rollouts(agent, env, n_steps, **carried)

    trained, fitness = train_on_policy(env, "CartPole-v1", pop=pop, max_steps=128, evo_steps=128, verbose=False, seed=1,
                                       collect_rollouts_fn=collect, eval_steps=5)  # fmt: skip
    assert calls == [(0, 16, False), (0, 16, True), (1, 16, False), (1, 16, True)]
    assert [a.steps[-1] for a in trained] == [128, 128]
    assert len(fitness[0]) == 2
    env.close()


def test_hidden_states_go_on_from_rollout_to_rollout_and_follow_mutations() -> None:
    env = make_vect_envs(make_env=lambda: _Env(SPACES[0][0]), num_envs=2)
    ppo = agent(recurrent=True, net_config=LSTM, num_envs=2, learn_step=10)
    _, obs, done, running, info = collect_rollouts_recurrent(ppo, env)
    after = {key: part.clone() for key, part in ppo._hidden.items()}
    ppo.learn()
    collect_rollouts_recurrent(ppo, env, None, obs, done, running, info)
    first = ppo.rollout_buffer.fields["hidden"]["actor_encoder_h"][0]
    np.testing.assert_array_equal(first, after["actor_encoder_h"].numpy().swapaxes(0, 1))
    assert np.abs(first).max() > 0
    before = ppo._hidden["actor_encoder_h"].clone()
    for name in ppo.networks:
        network = getattr(ppo, name)
        network.apply_mutation("encoder.add_node", numb_new_nodes=16)
    ppo.reinit_optimizers()
    ppo.mutation_hook()
    carried = ppo._hidden["actor_encoder_h"]
    assert carried.shape == (1, 2, 32)
    assert torch.equal(carried[..., :16], before)
    assert carried[..., 16:].abs().max() == 0
    env.close()


def test_shared_encoders_hold_their_weights_once() -> None:
    ppo = agent(share_encoders=True)
    assert isinstance(ppo.actor, SharedActorCritic)
    assert ppo.registry.all_registered() == {"actor"} or list(ppo.registry.all_registered()) == ["actor"]
    twin = ppo.clone(3)
    with torch.no_grad():
        for parameter in ppo.actor.encoder.parameters():
            parameter.zero_()
    assert not np.allclose(twin.critic(seen()).detach(), ppo.critic(seen()).detach())
    assert choose([ppo, twin]).name == "fused"
    for name in ("head_net.add_layer", "head_net.add_node", "add_latent_node", "encoder.add_node"):
        before = ppo.critic(seen()).detach().clone()
        ppo.actor.apply_mutation(name)
        torch.testing.assert_close(ppo.critic(seen()).detach(), before, atol=1e-5, rtol=1e-5)
    assert ppo.actor.value_net.hidden_size == ppo.actor.head_net.hidden_size


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm.normalize_observations": True},
        {"algorithm.share_encoders": True},
        {"algorithm.recurrent": True, "network.encoder": {"hidden_state_size": 16, "min_hidden_state_size": 8}},
    ],
    ids=["normalised", "shared", "recurrent"],
)
def test_a_run_by_name_is_loaded_as_it_was_saved(changes: dict[str, Any], tmp_path: Path) -> None:
    import agilerl

    run = agilerl.train(
        "CartPole-v1", "PPO", population=2, steps=512, out=tmp_path, verbose=False, evo_steps=256, learn_step=128,
        batch_size=16, update_epochs=2, target_score=None, **changes,
    )  # fmt: skip
    best = agilerl.load(run.path).best
    assert best.evaluate(8, seed=1).mean == run.best.evaluate(8, seed=1).mean
    assert best.share_encoders is run.best.share_encoders
    assert best.recurrent is run.best.recurrent


def test_members_of_different_observation_statistics_do_not_share_a_pass() -> None:
    pop = [agent(normalize_observations=True, index=i) for i in range(3)]
    statistics = pop[0].observation_statistics.running()
    statistics.add([{ALONE: seen(50)}])
    pop[1].take_statistics(statistics)
    learner = Learner(pop, choose(pop, "fused"))
    assert [group.members for group in learner.groups] == [[0, 2], [1]]
    learner.release()
    raw = pop[1].actor.encoder_input(seen(50)).numpy()
    # mean 0 and deviation 1 after the shift and the scale.
    normalised = pop[1].actor.preprocess(seen(50)).numpy()
    np.testing.assert_allclose(normalised, (raw - raw.mean(0)) / raw.std(0), atol=1e-5)


@pytest.mark.parametrize("wants", [(False, True), (True, False)])
@pytest.mark.parametrize("learner", ["fused", "sequential"])
def test_statistics_are_of_the_rollouts_of_members_that_normalise(wants: tuple[bool, ...], learner: Any) -> None:
    env = make_vect_envs("CartPole-v1", num_envs=2)
    spaces = env.single_observation_space, env.single_action_space
    pop = [PPO(*spaces, index=i, normalize_observations=one, learn_step=32) for i, one in enumerate(wants)]
    pop, _ = train_on_policy(
        env, "CartPole-v1", "PPO", pop, max_steps=128, evo_steps=64, eval_steps=8, learner=learner, verbose=False
    )
    env.close()
    counts = {one.normalize_observations: one.observation_statistics.count for one in pop}
    assert counts == {True: 128, False: 0}
    assert torch.equal(*(net.obs_mean for one in pop if one.normalize_observations for net in (one.actor, one.critic)))


def test_keys_of_replay_are_refused_in_a_manifest_of_ppo() -> None:
    from agilerl.config import preset_for
    from agilerl.config.load import manifest_from

    with pytest.raises(AgileRLError, match=r"training.eps_end: means nothing to PPO, which learns from its own"):
        manifest_from({"algorithm": {"name": "PPO"}, "training": {"eps_end": 0.01}})
    with pytest.raises(AgileRLError, match=r"replay_buffer: means nothing to PPO"):
        manifest_from({"algorithm": {"name": "PPO"}, "replay_buffer": {"max_size": 5}})
    assert preset_for("MountainCar-v0", "PPO").algorithm.name == "PPO"


def test_the_critic_of_shared_encoders_is_a_module_over_the_same_weights() -> None:
    ppo = agent(share_encoders=True)
    critic, obs = ppo.critic, np.ones((2, 3), np.float32)
    names = set(critic.state_dict())
    assert {name.partition(".")[0] for name in names} == {"encoder", "value_net"}
    assert not any(name.startswith("head_net") for name in names)
    before = critic(obs).detach().clone()
    twin = critic.clone()
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter += 0.1
    assert not torch.equal(ppo.critic(obs), before)  # the agent's own weights
    assert torch.equal(twin(obs), before)
    assert not critic.eval().value_net.training
    assert set(ppo.evolvable_attributes(networks_only=True)) == {"actor"}
