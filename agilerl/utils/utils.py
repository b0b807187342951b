"""The published helpers: populations, vector environments, progress bars, files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import torch
from torch import Tensor

from agilerl.algorithms import DEFAULT_FOR_TEAMS, available, find_algorithm, is_team
from agilerl.algorithms.base.agent import check_device
from agilerl.algorithms.base.declared import STRUCTURE
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.core import foreign
from agilerl.core.arguments import checked
from agilerl.core.files import with_suffix
from agilerl.core.hostile import malformed
from agilerl.core.moved import forward
from agilerl.core.ranges import Count
from agilerl.core.rng import resolve_seed
from agilerl.core.signatures import by_position_or_name, construct, constructor_signature
from agilerl.core.spaces import observation_space_channels_to_first
from agilerl.envs.protocol import DEFINED
from agilerl.envs.team_vector import make_multi_agent_vect_envs
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import AlgorithmError, ConfigError, NotAvailableYetError, RunError, warn_once
from agilerl.networks.specs import check_sizes
from agilerl.rollouts.off_policy import calculate_vectorized_scores
from agilerl.training.population import save_population
from agilerl.utils.distributed import aggregate_metrics_across_gpus, consolidate_mutations, gather_tensor, init_wandb
from agilerl.utils.legacy import constructor_arguments, network_arguments, spaces_from_dimensions
from agilerl.utils.llm_utils import suppress_verbose_logging as suppress_verbose_logging

if TYPE_CHECKING:
    from agilerl.hpo.mutation import Mutations
    from agilerl.hpo.tournament import TournamentSelection

__all__ = [
    "agent_from_policy", "aggregate_metrics_across_gpus", "calculate_vectorized_scores", "consolidate_mutations",
    "create_population", "default_progress_bar", "gather_tensor", "get_env_defined_actions", "init_wandb",
    "make_multi_agent_vect_envs", "make_skill_vect_envs", "make_vect_envs", "observation_space_channels_to_first",
    "plot_population_score", "print_hyperparams", "save_population_checkpoint", "tournament_selection_and_mutation",
]  # fmt: skip
__getattr__ = forward(__name__)  # names of earlier versions
UNUSED = {  # arguments of `create_population` that language algorithms (True) and others (False) do without
    True: (
        ("observation_space", "action_space", "net_config", "state_dim", "action_dim", "one_hot", "agent_ids",
         "agent_wrapper", "wrapper_kwargs", "critic_network"),
        "describes networks or spaces, and {} adapts a language model. fix: leave it out; model_name= or "
        "actor_network= with tokenizer= names the model.",
    ),
    False: (
        ("tokenizer", "model_name", "lora_config", "vllm_config"),
        "is of language algorithms; {} builds its own networks. fix: leave it out, or algo='GRPO'.",
    ),
}  # fmt: skip
OF_THE_CALL = (
    "self",
    "index",
    "hp_config",
    "device",
    "accelerator",
    "wrap",
    "mut",
    "seed",
)  # set by `create_population`
BOX2D = ("LunarLander", "LunarLanderContinuous", "BipedalWalker", "BipedalWalkerHardcore", "CarRacing")


@checked
def create_population(
    algo: str,
    net_config: dict[str, Any] | None = None,
    INIT_HP: dict[str, Any] | None = None,
    observation_space: Any = None,
    action_space: Any = None,
    hp_config: HyperparameterConfig | None = None,
    actor_network: object = None,
    critic_network: object = None,
    agent_wrapper: object = None,
    wrapper_kwargs: dict[str, Any] | None = None,
    population_size: Count = 1,
    num_envs: int = 1,
    device: str | torch.device = "cpu",
    accelerator: foreign.Accelerator | None = None,
    torch_compiler: str | None = None,
    tokenizer: foreign.Tokenizer | None = None,
    model_name: str | None = None,
    lora_config: object = None,
    vllm_config: object = None,
    algo_kwargs: dict[str, Any] | None = None,
    *,
    state_dim: object = None,
    action_dim: object = None,
    one_hot: bool | None = None,
    seed: int | None = None,
    agent_ids: Sequence[str] | None = None,
) -> list[Any]:
    """Create a population of `population_size` agents with indices 0, 1, ... and independent weights.

    Critics of DDPG and TD3 share the policy's encoder, as published, unless networks are passed or INIT_HP or
    `algo_kwargs` set `SHARE_ENCODERS`.

    Args:
        algo: name; case, spaces and dashes do not matter.
        net_config: encoder and head configuration; the old flat form is accepted.
        INIT_HP: initial hyperparameters, upper or lower case; an unknown key warns with the nearest known one.
        torch_compiler: published; ignored with one warning.
        observation_space, action_space: of one environment; multi-agent: a list of each (with `agent_ids` here or in
            `algo_kwargs` or INIT_HP) or a mapping by agent.
        hp_config: mutable hyperparameters; every agent gets a copy.
        actor_network, critic_network: networks to use instead of building them; every agent gets copies. Twin critics:
            a list of two, or one that is copied.
        agent_wrapper, wrapper_kwargs: wrapper class for every agent.
        num_envs: size of the vector environment.
        device: of the networks.
        algo_kwargs: further constructor arguments.
        model_name: for language algorithms, the folder or hub id of the base; alternatively `actor_network`, a causal
            language model, with `tokenizer`. All members share the base. lora_config: of PEFT.
        vllm_config: published; see `algo_kwargs={"rollout_backend": "vllm"}`.
        agent_ids: names of the agents, if their spaces are lists.
        state_dim, action_dim, one_hot: the old form of the spaces.
        seed: of weights and exploration; None derives it from `torch.initial_seed()`.

    Raises:
        AlgorithmError, ConfigError: an unknown algorithm, or values that do not fit.
    """
    if _are_spaces(net_config) and _are_spaces(INIT_HP):  # algo, spaces, net_config, INIT_HP: the order up to 2.3
        observation_space, action_space, net_config, INIT_HP = net_config, INIT_HP, observation_space, action_space
    if torch_compiler is not None:
        warn_once(
            "torch_compiler",
            f"torch_compiler={torch_compiler!r} changes nothing: members are rows of batched kernels, not compiled "
            "modules. fix: leave it out.",
            stacklevel=4,
        )
    cls, asked = find_algorithm(algo), locals()
    check_device(device)
    names, text = UNUSED[bool(cls.learns_language)]
    for name in names:
        if asked[name] is not None:
            raise ConfigError(f"create_population({name}=) {text.format(cls.__name__)}")
    run_seed, accepted = resolve_seed(seed), set(constructor_signature(cls).parameters)
    if cls.learns_language:
        for name in OF_THE_CALL:
            if name in (algo_kwargs or {}):
                raise AlgorithmError(f"{cls.__name__}: algo_kwargs has {name!r}. fix: leave it out of algo_kwargs.")
        arguments = constructor_arguments(INIT_HP, accepted.difference(OF_THE_CALL))
        arguments |= {name: asked[name] for name in ("actor_network", *UNUSED[False][0]) if asked[name] is not None}
        members: list[Any] = cls.population(
            population_size, seed=run_seed, hp_config=hp_config, device=device, accelerator=accelerator,
            **arguments | (algo_kwargs or {}),
        )  # fmt: skip
        for agent in members:
            agent.check_registry()
        return members
    is_for_teams = is_team(cls.__name__) if cls.__name__ in available() else False
    _check_kind(cls.__name__, is_for_teams, observation_space, action_space, agent_ids)
    if observation_space is None or action_space is None:
        if is_for_teams or state_dim is None or action_dim is None:
            fix = "env.single_observation_space, env.single_action_space"
            if is_for_teams:
                fix = "[env.single_observation_space(agent) for agent in env.agents], ..., agent_ids=env.agents"
            of_all = " of all agents" if is_for_teams else ""
            raise ConfigError(f"create_population needs observation_space and action_space{of_all}. fix: {fix}.")
        is_discrete = not cls.action_spaces or "Discrete" in cls.action_spaces
        observation_space, action_space = spaces_from_dimensions(state_dim, action_dim, one_hot, is_discrete, INIT_HP)
    # Published defaults of this function that differ from those of the classes.
    defaults = {"vect_noise_dim": num_envs, "num_envs": num_envs, "v_min": -100.0, "v_max": 100.0}
    # Networks passed by the caller keep their encoders unless sharing is requested.
    shares: bool = cls.shares_in_populations
    defaults["share_encoders"] = shares and actor_network is None and critic_network is None
    usual = {k: v for k, v in defaults.items() if k in accepted and k not in (algo_kwargs or {})}
    arguments = usual | constructor_arguments(INIT_HP, accepted)
    if agent_ids is not None:
        arguments["agent_ids"] = list(agent_ids)
    if actor_network is not None:
        arguments["actor_networks" if is_for_teams else "actor_network"] = actor_network
    if critic_network is not None:
        arguments |= _critics(critic_network, accepted, cls.__name__)
    population: list[Any] = cls.population(
        population_size,
        observation_space,
        action_space,
        agent_wrapper,
        wrapper_kwargs,
        seed=run_seed,
        hp_config=hp_config,
        net_config=network_arguments(net_config),
        device=device,
        accelerator=accelerator,
        **arguments,
        **(algo_kwargs or {}),
    )
    for agent in population:
        if isinstance(agent, cls):
            agent.check_registry()
    if actor_network is not None or critic_network is not None:
        return [agent.clone(agent.index) for agent in population]
    return population


def _are_spaces(value: Any) -> bool:
    """Whether this is a space, or the spaces of several agents."""
    each = value.values() if isinstance(value, Mapping) and not isinstance(value, gym.Space) else value
    is_group = isinstance(value, Mapping | list | tuple) and not isinstance(value, gym.Space) and len(value) > 0
    return isinstance(value, gym.Space) or (is_group and all(isinstance(space, gym.Space) for space in each))


def _check_kind(
    algo: str, is_for_teams: bool, observation_space: object, action_space: object, agent_ids: object
) -> None:
    """Raise AlgorithmError for spaces of several agents with a single-agent algorithm."""
    several = [
        isinstance(space, Mapping | list) and not isinstance(space, gym.Space)  # a Dict space is a mapping, too
        for space in (observation_space, action_space)
    ]
    if not is_for_teams and (any(several) or agent_ids is not None):
        raise AlgorithmError(f"{algo} trains one agent; got spaces of several. fix: algo={DEFAULT_FOR_TEAMS!r}.")


def _critics(networks: Any, accepted: set[str], algo: str) -> dict[str, Any]:
    """Map `critic_network`, a critic or a sequence of them, to the constructor's argument; twins are copies of one."""
    if "critic_networks" in accepted and (isinstance(networks, Mapping) or "agent_ids" in accepted):
        return {"critic_networks": networks}
    if "critic_networks" in accepted:
        pair = list(networks) if isinstance(networks, list | tuple) else [networks, networks.clone()]
        return {"critic_networks": pair}
    if "critic_network" in accepted:
        return {"critic_network": networks[0] if isinstance(networks, list | tuple) else networks}
    raise ConfigError(f"create_population(critic_network=): {algo} has no critic. fix: leave it out.")


def _check_box2d_available(env_name: str) -> None:
    """Raise ImportError for an environment that needs Box2D if it is not installed."""
    if env_name.split("/")[-1].partition("-")[0] in BOX2D and find_spec("Box2D") is None:
        raise ImportError(f'{env_name} needs Box2D, which is not installed. fix: pip install "agilerl[box2d]"')


def make_skill_vect_envs(env_name: str, skill: Any, num_envs: int = 1) -> gym.vector.VectorEnv:
    """Create a vector environment whose reward teaches a skill.

    Args:
        env_name: registered id. skill: a subclass of `agilerl.wrappers.learning.Skill`. num_envs: environments.
    """
    return make_vect_envs(env_name, num_envs, extra_wrappers=skill)


def get_env_defined_actions(info: Mapping[str, Any], agents: Sequence[str]) -> dict[str, Any] | None:
    """The actions that an environment chooses for its agents.

    Args:
        info: by agent; each may have `env_defined_actions` (or `env_defined_action`).

    Returns:
        agent -> its action, or None if the agent chooses itself; None if all of them do.
    """
    infos = {agent: info.get(agent) or {} for agent in agents}
    actions = {agent: agent_info.get(DEFINED, agent_info.get(DEFINED[:-1])) for agent, agent_info in infos.items()}
    return None if all(action is None for action in actions.values()) else actions


def default_progress_bar(max_steps: int, accelerator: Any = None) -> Any:
    """A tqdm bar over `max_steps` environment steps; disabled except in the main process."""
    from tqdm import tqdm

    disabled = accelerator is not None and not accelerator.is_local_main_process
    bar_format = "{l_bar}{bar:10}| {n:4}/{total_fmt} [{elapsed:>7}<{remaining:>7}, {rate_fmt}{postfix}]"
    return tqdm(total=max_steps, unit="step", bar_format=bar_format, ascii=True, disable=disabled)


def save_population_checkpoint(
    population: Sequence[Any], save_path: str | Path, overwrite_checkpoints: bool,
    accelerator: foreign.Accelerator | None = None,
) -> None:  # fmt: skip
    """Write every agent to `<save_path>_<slot>_<steps>.pt` (without the steps if `overwrite_checkpoints`)."""
    save_population(population, str(save_path).removesuffix(".pt"), overwrite_checkpoints)


def print_hyperparams(pop: Sequence[Any]) -> None:
    """Print a line per agent: id, mean of the last five fitnesses, hyperparameters, mutation."""
    for agent in pop:
        recent = agent.fitness[-5:]
        fitness = f"{sum(recent) / len(recent):.2f}" if recent else "none yet"
        values = ", ".join(f"{name} {value:.4g}" for name, value in agent.hyperparameters().items())
        print(f"agent {agent.index}: mean of 5 fitnesses {fitness}; {values}; mutation {agent.mut}")


def plot_population_score(pop: Sequence[Any]) -> Any:
    """Plot the fitness of each agent against its environment steps; shown if there is a display.

    Returns:
        The matplotlib figure.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ConfigError("plot_population_score needs matplotlib. fix: pip install agilerl[plots]") from None
    figure, axes = pyplot.subplots()
    for agent in pop:
        count = min(len(agent.steps), len(agent.fitness))
        axes.plot(agent.steps[:count], agent.fitness[:count], marker=".", label=f"agent {agent.index}")
    axes.set(xlabel="environment steps of one agent", ylabel="fitness", title="Fitness of the population")
    axes.legend()
    if figure.canvas.required_interactive_framework is not None:
        pyplot.show()
    return figure


def tournament_selection_and_mutation(
    population: list[Any],
    tournament: TournamentSelection,
    mutation: Mutations,
    env_name: str = "",
    algo: str | None = None,
    elite_path: str | Path | None = None,
    save_elite: bool = False,
    accelerator: foreign.Accelerator | None = None,
    language_model: bool = False,
) -> list[Any]:
    """Select, mutate and (with `save_elite`) save the elite; returns the next generation."""
    elite, population = tournament.select(population)
    population = mutation.mutation(population)
    if save_elite:
        elite.save_checkpoint(with_suffix(elite_path or f"{env_name}-elite_{algo or elite.algo}"))
    return population


def agent_from_policy(
    spec: Mapping[str, Any],
    state: Mapping[str, Tensor],
    device: str | torch.device = "cpu",
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Rebuild an agent from a saved policy: its algorithm, network with weights, and hyperparameters.

    Args:
        spec: from `agent.policy_spec()`. state: from `agent.policy_state()`.
        options: further constructor arguments of the run; hyperparameters of the policy take precedence.

    Raises:
        NotAvailableYetError: an algorithm that does not name the class of its policy.
    """
    decided = {*STRUCTURE, "normalize_observations"}  # by the networks of the policy
    options = {name: value for name, value in (options or {}).items() if name not in decided}
    if spec.get("normaliser") is not None:
        raise RunError(
            "the policy acts on observations that a wrapper has normalised. fix: best/policy.py loads it with its "
            "statistics, or use RSNorm.load on a checkpoint."
        )
    with malformed("the policy"):
        if "networks" in spec:  # of a team
            return find_algorithm(spec["algo"]).from_policy(spec, state, check_device(device), options)
        check_sizes({"policy": {"spec": spec["network"], "weights": state}}, "the policy")
        cls: Any = find_algorithm(spec["algo"])
        if not hasattr(cls, "policy_class"):
            name = cls.__name__
            raise NotAvailableYetError(
                f"{name} does not name the class of its policy, so that a policy file cannot be read. fix: "
                f"policy_class = QNetwork (or another network) in class {name}; a run with a checkpoint needs none."
            )
        network = cls.policy_from_spec(spec["network"], check_device(device))
        network.load_state_dict(dict(state))
        accepted = set(constructor_signature(cls).parameters)
        values = {k: v for k, v in {**options, **spec["hyperparameters"]}.items() if k in accepted}
        spaces, named = by_position_or_name(
            cls, observation_space=network.observation_space, action_space=network.action_space
        )
        agent = construct(cls, *spaces, actor_network=network, device=device, **named, **values)
        agent.environment = spec.get("environment")
        if spec.get("action_masks"):
            agent.action_masks = True
        agent.set_training_mode(False)  # greedy actions, in units of the environment
        return agent
