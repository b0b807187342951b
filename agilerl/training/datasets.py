"""Implementation of `agilerl data make`: record data sets from random, medium, expert or replay policies."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agilerl.algorithms import DEFAULT_FOR_BOX
from agilerl.config import Manifest, apply_overrides, apply_sets, has_preset, preset_for
from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.core.env_ids import is_team_id, resolve_env_id, takes_box_actions
from agilerl.core.ranges import Count, check
from agilerl.data.dataset import read_dataset
from agilerl.data.recording import (
    LANES,
    Policy,
    Recording,
    check_target,
    exploration,
    greedy_policy,
    joined,
    noisy_policy,
    random_policy,
    record,
    whole_returns,
    write_dataset,
)
from agilerl.envs.limits import DEFAULT_EPISODE_LIMIT, time_limit
from agilerl.envs.step import Lanes
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import ConfigError, RunError, unknown_choice
from agilerl.runs.directory import versions
from agilerl.training.manifest.launch import run_training

POLICIES = {
    "random": "uniformly random legal actions",
    "medium": "a policy on its way from random play to the expert",
    "expert": "the best policy of a run by the preset",
    "mixed": "equal parts of random, medium and expert",
    "medium-replay": "the replay memory of the run up to medium",
}
MEDIUM = (1 / 3, 1 / 2)  # range of the normalised score, from random play (0) to the expert (1)
TEST_EPISODES, TEST_LANES = 100, 25

Say = Callable[[str], None]


@dataclass(frozen=True)
class Trained:
    """Policies from a training run with the preset.

    Attributes:
        random, expert, medium: mean returns over 100 held-out episodes, the same for all three.
        expert_agent, medium_agent: the agents with these returns.
        generation: generation after which `medium_agent` was the best of the run, counted from 1.
        manifest: of the run.
    """

    random: float
    expert: float
    medium: float
    expert_agent: Any
    medium_agent: Any
    generation: int
    manifest: Manifest

    @property
    def share(self) -> float:
        """Normalised score of medium, from random (0) to the expert (1)."""
        return (self.medium - self.random) / (self.expert - self.random)

    def facts(self) -> dict[str, Any]:
        """Attributes of a data set."""
        scores = {name: round(vars(self)[name], 3) for name in ("random", "medium", "expert")}
        return {
            "algo": self.manifest.algorithm.name,
            "preset": self.manifest.hash(),
            "scores": scores,
            "medium_share": round(self.share, 3),
            "medium_generation": self.generation,
        }

    def lines(self) -> list[str]:
        """Lines for the log."""
        low, high = (f"{share:.0%}" for share in MEDIUM)
        return [
            f"random {self.random:.1f}, expert {self.expert:.1f} (means of {TEST_EPISODES} fresh episodes)",
            f"medium {self.medium:.1f}: {self.share:.0%} of the way, the best agent after generation {self.generation} "
            f"(wanted: the first one at {low} to {high})",
        ]


class _Bests:
    """Callback that collects every best agent of a run with its generation."""

    def __init__(self) -> None:
        self.found: list[tuple[int, Any]] = []
        self.generations = 0

    def on_best(self, agent: foreign.Agent) -> None:
        if not self.found or self.found[-1][1] is not agent:
            self.found.append((self.generations + 1, agent))

    def on_generation(self, record: object) -> None:
        self.generations += 1


@dataclass
class Maker:
    """Makes data sets of one environment; policies that need training are trained once.

    Args:
        env_id: a Gymnasium id. algo: for medium and expert; None: the preset's.
        seed: of everything. settings: KEY=VALUE for the training of medium and expert, as in --set.
        say: called with progress, line by line.

    Raises:
        EnvError: the environment cannot be made. ConfigError: it has several agents.
    """

    env_id: str
    algo: str | None = None
    seed: int = 0
    settings: Sequence[str] = ()
    say: Say = lambda line: None
    _trained: Trained | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if is_team_id(self.env_id):
            raise ConfigError(
                f"{self.env_id} has several agents; data sets hold the transitions of one. "
                "fix: an environment of one agent, such as CartPole-v1."
            )
        self.env_id = resolve_env_id(self.env_id)

    # -- recording ---------------------------------------------------------------------------------------------------

    def make(
        self,
        policy: str | Any,
        rows: int,
        out: str | Path,
        *,
        noise: float = 0.0,
        name: str = "an agent",
        about: Mapping[str, Any] | None = None,
    ) -> Path:
        """Record `rows` steps and write them to `out`; return its path.

        Args:
            policy: one of `POLICIES`, or an agent, whose greedy policy is recorded.
            noise: exploration, see `data.recording.noisy_policy`; only for policies of agents.
            name: name of the agent in the attributes. about: further attributes, as JSON values.

        Raises:
            ConfigError: an unknown policy, rows below 1, an existing file, or a policy that was not learned.
        """
        path = Path(out)
        check_target(path)
        check("rows", rows, Count, 50_000, unit="steps of the data set")
        if isinstance(policy, str) and policy not in POLICIES:
            raise ConfigError(f"{unknown_choice('policy', policy, POLICIES, 'a run directory')}")
        if noise and policy in ("random", "medium-replay"):
            raise ConfigError(f"noise is for the actions of a policy; {policy} has none. fix: leave --noise out.")
        name = policy if isinstance(policy, str) else name
        recording, facts = self._record(policy, rows, noise)
        if len(recording) < rows:
            self.say(f"{len(recording)} rows, not {rows}: the memory held no more")
        attributes = {"env_id": self.env_id, "policy": name, "rows": len(recording), "seed": self.seed}
        attributes |= {"noise": noise} if noise else {}
        attributes |= {**facts, **(about or {}), "cut_episodes": recording.cut, "versions": versions(self.env_id)}
        write_dataset(path, recording.arrays, attributes)
        return path

    def _record(self, policy: str | Any, rows: int, noise: float) -> tuple[Recording, dict[str, Any]]:
        if policy == "medium-replay":
            return self._replay(rows)
        env = make_vect_envs(self.env_id, num_envs=min(LANES, rows))
        try:
            spaces = {name: str(ask(env, "single_")) for name, ask in foreign.SPACES}
            names = ("random", "medium", "expert") if policy == "mixed" else (policy,)
            facts = spaces if policy == "random" or not isinstance(policy, str) else {**spaces, **self.trained.facts()}
            shares = [rows // len(names) + (k < rows % len(names)) for k in range(len(names))]
            parts = [
                self._part(env, name, share, noise, part)
                for part, (name, share) in enumerate(zip(names, shares, strict=True))
                if share
            ]
            return joined(parts), facts
        finally:
            env.close()

    def _part(self, env: Any, policy: str | Any, rows: int, noise: float, part: int) -> Recording:
        space, rng = env.single_action_space, exploration(self.seed, part)
        if policy == "random":
            act = random_policy(space, rng)
        else:
            agent = policy if not isinstance(policy, str) else getattr(self.trained, f"{policy}_agent")
            act = noisy_policy(greedy_policy(agent), space, noise, rng)
        lanes = env.replicate(1)
        try:
            return record(act, lanes, rows, self.seed, part, time_limit(env) or DEFAULT_EPISODE_LIMIT)
        finally:
            lanes.close()

    # -- training ------------------------------------------------------------------------------------------------------

    @property
    def trained(self) -> Trained:
        """Expert and medium policies, trained at the first call.

        The expert is the best agent of a run with the preset (without one, the algorithm's defaults). Medium is the
        first best agent of the run with a mean return a third to a half of the way from random play to the expert. If
        none falls in this range, the one closest to its middle is used.

        Raises:
            RunError: the run did not improve on random play. KeyboardInterrupt: it was stopped.
        """
        if self._trained is None:
            self._trained = self._train()
        return self._trained

    def manifest(self) -> Manifest:
        """Manifest used to train expert and medium."""
        algo = self.algo
        if algo is None and not has_preset(self.env_id) and takes_box_actions(self.env_id):
            algo = DEFAULT_FOR_BOX
        manifest = apply_overrides(preset_for(self.env_id, algo), {"training.seed": self.seed})
        return apply_sets(manifest, self.settings)

    def _train(self) -> Trained:
        manifest, bests = self.manifest(), _Bests()
        self.say(f"training {manifest.algorithm.name} on {self.env_id}, seed {self.seed}: expert and medium")
        run = run_training(manifest, out=None, verbose=False, callbacks=[bests])
        if run.interrupted:
            raise KeyboardInterrupt
        env: Any = make_vect_envs(self.env_id, num_envs=TEST_LANES)
        lanes: Lanes = env.replicate(1, reset_ended=False)
        try:
            space = lanes.single_action_space
            limit = None if time_limit(env) else DEFAULT_EPISODE_LIMIT

            def score(act: Policy) -> float:
                return float(whole_returns(act, lanes, TEST_EPISODES, self.seed, limit).mean())

            random, expert = score(random_policy(space, exploration(self.seed, 9))), score(greedy_policy(run.best))
            if not expert > random:
                raise RunError(
                    f"{manifest.algorithm.name} has not learned {self.env_id}: {expert:.1f}, at random {random:.1f} "
                    f"(means of {TEST_EPISODES} episodes). fix: a larger budget (--set training.max_steps=N), or the "
                    "directory of another run instead of the name."
                )
            medium, agent, generation = _medium(bests.found, score, random, expert)
        finally:
            lanes.close()
            env.close()
        trained = Trained(random, expert, medium, run.best, agent, generation, manifest)
        for line in trained.lines():
            self.say(line)
        return trained

    def _replay(self, rows: int) -> tuple[Recording, dict[str, Any]]:
        """Return the last rows of the run's memory after the generation of medium, by repeating the run until then."""
        manifest = self.manifest()
        if not manifest.has_replay or manifest.replay_buffer.n_step > 1:
            reason = "keeps no replay" if not manifest.has_replay else "keeps sums over several steps"
            raise ConfigError(
                f"medium-replay is a memory of single steps, and {manifest.algorithm.name} {reason}. "
                "fix: --algo of another one, or --set replay_buffer.n_step=1."
            )
        trained = self.trained
        last = trained.generation

        def stop(record: Any) -> bool:
            return bool(record.generation + 1 < last)

        self.say(f"training again up to generation {last}, for its replay memory")
        with tempfile.TemporaryDirectory() as folder:
            run = run_training(trained.manifest, out=folder, verbose=False, callbacks=[stop])
            if run.interrupted:
                raise KeyboardInterrupt
            assert run.path is not None
            data = read_dataset(run.path)
            agent = run.population[0]
        if not len(data):
            raise RunError("the run up to medium has stored nothing. fix: another policy.")
        action = agent.environment_action(data.action)
        keep = slice(max(0, len(data) - rows), None)
        arrays = data.arrays() | {"actions": action}
        recent = {name: trees.map_leaves(lambda leaf: leaf[keep], part) for name, part in arrays.items()}
        spaces = {name: str(ask(agent)) for name, ask in foreign.SPACES}
        lost = {"rewards": data.about["rewards"]} if "rewards" in data.about else {}
        return Recording(recent, int(recent["timeouts"].sum())), {**spaces, **trained.facts(), **lost}


def _medium(
    bests: Iterable[tuple[int, Any]], score: Callable[[Policy], float], random: float, expert: float
) -> tuple[float, Any, int]:
    """Return (mean return, agent, generation) of the first best agent within `MEDIUM`, else of the closest one."""
    low, high = (random + share * (expert - random) for share in MEDIUM)
    best: tuple[float, Any, int] | None = None
    for generation, agent in bests:
        value = score(greedy_policy(agent))
        if best is None or abs(value - (low + high) / 2) < abs(best[0] - (low + high) / 2):
            best = value, agent, generation
        if value >= low:
            break
    assert best is not None
    return best
