"""Collector of bandits: members choose arms, store the contexts of these arms, and learn from one replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from agilerl.collect.acting import Acting
from agilerl.collect.collector import Running
from agilerl.collect.custom.member import CustomLearner
from agilerl.collect.off_policy import OffPolicyCollector
from agilerl.collect.updates import Updates
from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.core.spaces import nested, short_form
from agilerl.engine.choose import Choice
from agilerl.envs.bandit import is_bandit, rounds_of
from agilerl.envs.lanes import name_of
from agilerl.envs.step import StepBatch
from agilerl.errors import AlgorithmError

MAX_SCALED_ROWS = 1_024  # newest rows of replay, by which inputs are scaled


class BanditActing(Acting):
    """Acting by the members' design matrices, which their choices update."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._regret = np.zeros(len(self.agents))
        self._rebuild_designs()

    def _rebuild_designs(self) -> None:
        """Rebuild stale design matrices from the newest rows of replay, as many as the member has chosen arms."""
        agents: list[Any] = [agent for agent in self.agents if agent.is_design_stale]
        memory, new_rounds = self.replay.memory, self._made * self.num_envs
        for agent in agents:
            places = memory.in_order()[max(0, len(memory) - agent.rounds - new_rounds) :]
            agent.rebuild_design(memory.gather(places)["obs"] if len(places) else None)

    def keep(self, batch: StepBatch) -> None:
        """Store a vector step, and rescale inputs whenever rounds have doubled."""
        super().keep(batch)
        agents: list[Any] = self.agents
        memory, new_rounds = self.replay.memory, self._made * self.num_envs
        if any(agent.rounds + new_rounds >= 2 * agent.scaled_rounds for agent in agents):
            contexts = memory.gather(memory.in_order()[-MAX_SCALED_ROWS:])["obs"]
            for agent in agents:
                agent.rescale(contexts, agent.rounds + new_rounds, self.ranks)
            self._rebuild_designs()

    def _explored(self, rows: trees.Tree, draws: tuple[np.ndarray, ...], legal: np.ndarray | None) -> np.ndarray:
        chosen = np.empty((len(self.agents), self.num_envs), dtype=np.int64)
        for number, group in enumerate(self.learner.groups):
            members, agents = group.members, list[Any](group.agents)
            inverse = torch.stack([agent.sigma_inv.to(group.device) for agent in agents])
            scale = inverse.new_tensor([agent.width_scale() for agent in agents])
            outputs = self.learner.outputs_of(number, trees.take(rows, members))
            member_draws = tuple(draw[members] for draw in draws)
            mask = None if legal is None else group.lead.legal_choices(legal[members])
            chosen[members], inverse = group.lead.choose(outputs, inverse, scale, member_draws, mask)
            for agent, member_inverse in zip(agents, inverse.unbind(), strict=True):
                agent.sigma_inv = member_inverse.clone()
        return chosen

    def _stored(self, obs: trees.Tree, action: np.ndarray, batch: StepBatch) -> tuple[Any, np.ndarray, StepBatch]:
        """Return the contexts of the chosen arms; a round has no next observation, and a zero takes its place."""
        missed = np.where(batch.mask, 1 - batch.reward, 0.0)
        self._regret += missed.reshape(len(self.agents), -1).sum(1)
        lanes = np.arange(len(action))
        contexts = trees.map_leaves(lambda leaf: leaf[lanes, action], obs)
        return contexts, action, replace(batch, final_obs=np.zeros((len(action), 1), dtype=np.float32))

    def end(self) -> Running | None:
        for bandit, tally, regret in zip(self.agents, self.tallies, self._regret.tolist(), strict=True):
            bandit.rounds += tally.env_steps // self.ranks.size
            bandit.regret.append(bandit.regret[-1] + regret)
        return super().end()


class BanditUpdates(Updates):
    """Updates from contexts and rewards."""

    def _observations(self, rows: dict[str, Any], prepare: Any) -> dict[str, Any]:
        contexts = prepare(rows["obs"])
        return {"obs": contexts, "next_obs": contexts}


class BanditCollector(OffPolicyCollector):
    """Members choose arms and learn from the rewards of all members' choices."""

    waits_for_lanes = "the design matrix counts the choices of all lanes at once"
    acting = BanditActing
    updating = BanditUpdates

    def __init__(
        self, env: foreign.Env, memory: Any, options: Any, n_step_memory: Any = None, eval_env: object = None
    ) -> None:
        env, eval_env = (rounds_of(each) if is_bandit(each) else each for each in (env, eval_env))
        super().__init__(env, memory, options, n_step_memory, eval_env)

    @staticmethod
    def spaces(env: foreign.Env) -> tuple[Any, Any]:
        """See `LaneCollector.spaces`.

        Raises:
            AlgorithmError: observations that are not the contexts of all arms.
        """
        space, actions = OffPolicyCollector.spaces(env)
        arms = actions.n if isinstance(actions, spaces.Discrete) else 0
        shapes: list[Any] = [part.shape or () for part in trees.leaves(nested(space))]
        if arms and any(len(shape) not in (1, 2, 4) or shape[0] != arms for shape in shapes):
            raise AlgorithmError(
                f"{name_of(env)} shows {short_form(space)}, and bandits read the contexts of all {arms} arms, "
                f"[{arms}, ...]. fix: an id such as bandit/iris, or BanditEnv(features, targets)."
            )
        return space, actions

    def _choose(self, population: Sequence[Any]) -> Choice:
        choice = super()._choose(population)
        if choice.name == CustomLearner.name:
            raise AlgorithmError(
                f"{choice.reason}, which this collector does not call. fix: override update(engine, batch) or "
                "arm_scores(mean, width, draws)."
            )
        return choice
