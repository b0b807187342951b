"""IPPO of one agent with the options of PPO: the same weights from the same rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.algorithms.ippo import IPPO
from agilerl.algorithms.mappo import MAPPO
from agilerl.algorithms.ppo import PPO
from agilerl.errors import AlgorithmError
from agilerl.networks.actors import SharedActorCritic, StochasticActor

OBS, BOX, CHOICE = spaces.Box(-1, 1, (3,)), spaces.Box(-2, 2, (2,)), spaces.Discrete(3)
NET = {"latent_dim": 8, "encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}}
STEPS, LANES, NAME = 12, 4, "solo"
ARGUMENTS = {"net_config": NET, "batch_size": 16, "lr": 1e-2, "update_epochs": 2, "ent_coef": 0.1, "seed": 1}


def pair(action: Any, **options: Any) -> tuple[PPO, IPPO]:
    """A PPO agent and a team of one agent with equal weights."""
    single = PPO(OBS, action, **ARGUMENTS, **options)
    team = IPPO({NAME: OBS}, {NAME: action}, **ARGUMENTS, **options)
    team.actors[NAME].load_state_dict(single.actor.state_dict())
    team.critics[NAME].load_state_dict(single.critic.state_dict())
    return single, team


def rollout(single: PPO, draw: np.random.Generator) -> dict[str, Any]:
    names = ("observations", "actions", "log_probs", "values", "rewards", "dones")
    fields: dict[str, Any] = {name: [] for name in names}
    single.set_training_mode(True)
    for _ in range(STEPS):
        obs = draw.uniform(-1, 1, (LANES, 3)).astype(np.float32)
        action, log_prob, _, value = single.get_action(obs)
        row = (obs, action, log_prob, value, draw.normal(size=LANES), draw.random(LANES) < 0.2)
        for name, entry in zip(names, row, strict=True):
            fields[name].append(entry)
    return {**fields, "next_obs": fields["observations"][0], "next_done": np.zeros(LANES, bool)}


def by_agent(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: {NAME: entries} for name, entries in fields.items()}


def weights(agent: Any) -> torch.Tensor:
    networks = agent.evaluation_networks().values()
    return torch.cat([p.detach().flatten() for network in networks for p in network.parameters()])


@pytest.mark.parametrize(
    ("action", "options"),
    [
        (BOX, {}),
        (CHOICE, {}),
        (BOX, {"clip_schedule": "linear", "ent_schedule": "linear", "lr_schedule": "linear"}),
        (BOX, {"action_std_min": 0.8, "action_std_init": 0.5}),
        (BOX, {"action_ent_steps": 20}),
        (CHOICE, {"action_ent_steps": 20}),
        (BOX, {"lr_schedule": "adaptive", "target_kl": 1e-5}),
        (BOX, {"noise_persistence": 0.9}),
        (BOX, {"normalize_observations": True}),
        (CHOICE, {"normalize_observations": True}),
        (BOX, {"share_encoders": True}),
        (CHOICE, {"share_encoders": True, "normalize_observations": True}),
    ],
)
def test_a_team_of_one_learns_what_ppo_learns(action: Any, options: dict[str, Any]) -> None:
    single, team = pair(action, **options)
    before, draw = weights(single), np.random.default_rng(5)
    for progress in (0.2, 0.5):
        single.progress = team.progress = progress
        fields = rollout(single, draw)
        single.learn(fields)
        team.learn(by_agent(fields))
        torch.testing.assert_close(weights(team), weights(single), rtol=1e-4, atol=1e-5)
        assert team.lr == pytest.approx(single.lr, rel=1e-4)  # the divergence of float32 outputs
        assert (team.lr == ARGUMENTS["lr"]) == (options.get("lr_schedule") != "adaptive")
        assert team.learned_steps == single.learned_steps > 0
    assert (weights(single) - before).abs().max() > 1e-3


def test_the_weight_of_entropy_decays_for_box_actions_alone() -> None:
    team = IPPO({"b": OBS, "c": OBS}, {"b": BOX, "c": CHOICE}, **ARGUMENTS, action_ent_steps=20)
    team.learned_steps = 80
    found = team.update_hyperparameters()
    assert (found["ent_coef"], found["choice_ent_coef"]) == pytest.approx((0.1 * 20 / 80, 0.1))


def test_noise_persists_from_step_to_step_and_from_call_to_call_in_box_columns_alone() -> None:
    team = IPPO({"b": OBS, "c": OBS}, {"b": BOX, "c": CHOICE}, **ARGUMENTS, noise_persistence=0.6)
    plain = IPPO({"b": OBS, "c": OBS}, {"b": BOX, "c": CHOICE}, **ARGUMENTS)
    (fresh,), (drawn,) = (t.draw_exploration(np.random.default_rng(2), (3, 5)) for t in (plain, team))
    expected = fresh.copy()
    for t in (1, 2):
        expected[t, :, :2] = 0.6 * expected[t - 1, :, :2] + 0.8 * fresh[t, :, :2]
    np.testing.assert_allclose(drawn, expected, rtol=1e-12)
    assert drawn.shape == (3, 5, 3)
    first, second = (team._draws((5,))[0].copy() for _ in range(2))
    raw, after = (plain._draws((5,))[0] for _ in range(2))
    np.testing.assert_array_equal(first, raw)
    np.testing.assert_allclose(second[:, :2], 0.6 * first[:, :2] + 0.8 * after[:, :2], rtol=1e-12)
    np.testing.assert_array_equal(second[:, 2], after[:, 2])


def test_noise_of_choices_alone_cannot_persist() -> None:
    with pytest.raises(AlgorithmError, match="IPPO: noise_persistence is of Box actions, and these are Discrete"):
        IPPO({NAME: OBS}, {NAME: CHOICE}, noise_persistence=0.5)


@pytest.mark.parametrize("share", [False, True])
def test_a_recurrent_team_of_one_learns_what_ppo_learns(share: bool) -> None:
    memory = {"encoder_config": {"hidden_state_size": 8}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}
    options = {**ARGUMENTS, "net_config": memory, "batch_size": 64, "recurrent": True, "share_encoders": share}
    single, team = PPO(OBS, CHOICE, **options), IPPO({NAME: OBS}, {NAME: CHOICE}, **options)
    team.actors[NAME].load_state_dict(single.actor.state_dict())
    team.critics[NAME].load_state_dict(single.critic.state_dict())
    draw, before = np.random.default_rng(5), weights(single)
    names = ("observations", "actions", "log_probs", "values", "rewards", "dones", "hidden_states")
    fields: dict[str, Any] = {name: [] for name in names}
    single.set_training_mode(True)
    hidden, done = single.get_initial_hidden_state(LANES), np.zeros(LANES, bool)
    for _ in range(STEPS):
        obs, start = draw.uniform(-1, 1, (LANES, 3)).astype(np.float32), hidden
        action, log_prob, _, value, after = single.get_action(obs, hidden_state=hidden)
        for name, entry in zip(
            names, (obs, action, log_prob, value, draw.normal(size=LANES), done, start), strict=True
        ):
            fields[name].append(entry)
        done = draw.random(LANES) < 0.2
        hidden = {key: part.masked_fill(torch.from_numpy(done)[:, None], 0) for key, part in after.items()}
    fields |= {"next_obs": fields["observations"][0], "next_done": done, "last_values": fields["values"][0]}
    of_team = by_agent(fields)
    of_team["hidden_states"] = [
        dict(zip(team.hidden_state_architecture, step.values(), strict=True)) for step in fields["hidden_states"]
    ]
    single.learn(fields)
    team.learn(of_team)
    torch.testing.assert_close(weights(team), weights(single), rtol=1e-4, atol=1e-5)
    assert (weights(single) - before).abs().max() > 1e-3


def test_networks_that_contradict_shared_encoders_are_named() -> None:
    spaces_of = {NAME: OBS}, {NAME: CHOICE}
    shared, plain = SharedActorCritic(OBS, CHOICE), StochasticActor(OBS, CHOICE)
    assert IPPO(*spaces_of, actor_networks={NAME: shared}).share_encoders
    with pytest.raises(AlgorithmError, match="IPPO: with shared encoders the actor_network holds the value"):
        IPPO(*spaces_of, share_encoders=True, critic_networks={NAME: IPPO(*spaces_of).critics[NAME]})
    with pytest.raises(AlgorithmError, match="IPPO: share_encoders=True needs a SharedActorCritic"):
        IPPO(*spaces_of, share_encoders=True, actor_networks={NAME: plain})
    with pytest.raises(AlgorithmError, match="MAPPO: values read other observations"):
        MAPPO(*spaces_of, actor_networks={NAME: shared})
