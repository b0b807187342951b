"""Cost of training a member: operations of its networks, times how often its settings run them."""

from __future__ import annotations

from typing import Any

from agilerl import foreign
from agilerl.algorithms.base.adapted import adapted
from agilerl.errors import ConfigError
from agilerl.hpo.cost import forward_operations, replay_operations, rollout_operations
from agilerl.hpo.effects import Apart, shared_names
from agilerl.modules.base import EvolvableModule
from agilerl.modules.paths import resolve
from agilerl.sources.updates import Schedule

UNCHANGED = ("observation_space", "action_space", "device", "random_seed")  # by mutations


class MemberCosts:
    """Floating-point operations per step of a member, as its networks and hyperparameters are now.

    An estimate that follows from them alone, so that a resumed run has the same: no time is measured. Steps are
    environment steps; gradient updates offline. Left out is what all members share (the environment, preprocessing,
    optimisers) and what only training shows, such as epochs that `target_kl` ends. Each trained network is taken to
    make one pass per row, though a delayed actor (TD3) makes fewer and a critic of sampled actions (CQL) more. Passes
    through each architecture are counted once.

    Args:
        env_steps_at_once: environment steps of a member in one vector step, over all processes.
    """

    def __init__(self, env_steps_at_once: int = 1) -> None:
        self.env_steps_at_once = env_steps_at_once
        self._operations: dict[tuple[str, str], int] = {}  # by name and architecture

    def of(self, agent: Any) -> float:
        """Return the operations of one step.

        Raises:
            ConfigError: an algorithm or a network whose operations are not counted.
        """
        kind, agent = adapted(agent).experience, adapted(agent).unwrapped
        if kind is None or not kind.is_counted:
            says = "declares no experience" if kind is None else kind.says
            raise ConfigError(
                f"evolution.objective=score_per_second: operations of {type(agent).__name__}, which {says}, are not "
                "counted. fix: evolution.objective=score."
            )
        groups = agent.registry.groups
        passes = {str(group.eval_network): self._passes(agent, str(group.eval_network)) for group in groups}
        if kind.on_policy:
            return rollout_operations(sum(passes.values()), int(_setting(agent, "update_epochs")))
        targets = sum(passes[str(group.eval_network)] * len(shared_names(group)) for group in groups)
        if not kind.has_training_episodes:  # a step is an update
            return replay_operations(0.0, sum(passes.values()), targets, int(_setting(agent, "batch_size")))
        due = Schedule.of(_setting(agent, "learn_step"), self.env_steps_at_once)
        updates = due.count / (due.interval * self.env_steps_at_once)
        acting = sum(passes[str(group.eval_network)] for group in groups if group.policy)
        rows = int(_setting(agent, "batch_size")) * updates
        return replay_operations(acting, sum(passes.values()), targets, rows)

    def if_counted(self, agent: Any) -> float | None:
        """Return the operations of one step; None if they are not counted."""
        try:
            return self.of(agent)
        except ConfigError:
            return None

    def _passes(self, agent: Any, name: str) -> int:
        """Return the operations of a network for one step of all agents that share it."""
        network = resolve(agent, name)
        key = name, _architecture(network)
        if key not in self._operations:
            self._operations[key] = forward_operations(network, name)
        agents = len(agent.agents_of(name)) if isinstance(agent, Apart) else 1
        return self._operations[key] * agents


def _setting(agent: Any, name: str) -> float:
    """Return a hyperparameter that the cost of a kind of learning depends on; ConfigError without it."""
    present = dict(foreign.attributes(agent, (name,)))
    if name not in present:
        raise ConfigError(
            f"evolution.objective=score_per_second: operations depend on {name}, which {type(agent).__name__} lacks. "
            f"fix: evolution.objective=score, or self.{name}."
        )
    return float(present[name])


def _architecture(network: Any) -> str:
    """Return a text that differs for any two architectures of one network in a run; its spaces stay as they are."""
    arguments = network.get_init_dict() if isinstance(network, EvolvableModule) else {}
    shape = {key: value for key, value in arguments.items() if key not in UNCHANGED}
    return f"{type(network).__qualname__} {shape}"
