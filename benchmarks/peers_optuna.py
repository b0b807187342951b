"""Optuna's TPE and median pruner over Stable-Baselines3, for `opponent_peers.py`."""

from __future__ import annotations

import copy
from typing import Any

import optuna
from peers_clock import EvaluationSeeds, Player, Watch
from peers_sb3 import EachStep, explore_over, make_model, play, player_of, start_of

EVALUATIONS, EPISODES = 5, 8  # of a trial; of an evaluation
DEFAULT_TRIAL_STEPS = 20_000


def trial_steps_of(job: dict[str, Any]) -> int:
    """Training steps of one trial at most."""
    if job.get("trial_steps") is not None:
        return int(job["trial_steps"])
    return DEFAULT_TRIAL_STEPS if job["step_budget"] is None else max(EVALUATIONS, int(job["step_budget"] / 10))


def draw(trial: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Hyperparameters of one trial."""
    low, high = job["start"]["gamma_range"]
    found = {
        "learning_rate": trial.suggest_float("learning_rate", *job["start"]["lr_range"], log=True),
        "gamma": 1 - trial.suggest_float("one_minus_gamma", 1 - high, 1 - low, log=True),
        "batch_size": trial.suggest_categorical("batch_size", [16, 32, 64, 128, 256]),
    }
    if job["algo"] == "PPO":
        found["ent_coef"] = trial.suggest_float("ent_coef", 1e-8, 0.1, log=True)
    if job["algo"] == "DQN":
        found["exploration_fraction"] = trial.suggest_float("exploration_fraction", 0.01, 0.5)
    return found


class Search:
    """The study's objective, with the policy of the best evaluation so far."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job, self.watch = job, Watch(job)
        self.trial_steps = trial_steps_of(job)
        self.seeds = EvaluationSeeds(job["seed"])
        self.best_score, self.best_policy = -float("inf"), None
        self.settings = start_of(job)

    def player(self, running: Any = None) -> Player:
        """Of the best evaluation; before the first one, of the trial that runs."""
        policy = self.best_policy if self.best_policy is not None else running.policy
        return player_of(policy, self.job["env"])

    def __call__(self, trial: Any) -> float:
        given = draw(trial, self.job)
        model = make_model(self.job, 1000 * self.job["seed"] + trial.number, **given)
        explore_over(model, lambda: model.num_timesteps / self.trial_steps)
        before, scores = self.watch.training_env_steps, list[float]()

        def go_on(model: Any) -> bool:
            self.watch.training_env_steps = before + model.num_timesteps
            ended = False
            if model.num_timesteps * EVALUATIONS >= (len(scores) + 1) * self.trial_steps:
                scores.append(self.evaluate(model, given))
                trial.report(scores[-1], len(scores))
                ended = len(scores) == EVALUATIONS or trial.should_prune()
            return not self.watch.look(lambda: self.player(model)) and not ended

        model.learn(self.trial_steps, callback=EachStep(go_on))
        model.get_env().close()
        if self.watch.over:
            trial.study.stop()
        if len(scores) < EVALUATIONS:
            raise optuna.TrialPruned
        return scores[-1]

    def evaluate(self, model: Any, given: dict[str, Any]) -> float:
        """Mean return of greedy episodes, whose steps and CPU seconds count."""
        score, env_steps = play(model.policy, self.job["env"], self.seeds.draw(EPISODES))
        self.watch.evaluation_env_steps += env_steps
        if score > self.best_score:
            self.best_score, self.best_policy, self.settings = score, copy.deepcopy(model.policy), given
        return score


def run_arm(job: dict[str, Any]) -> dict[str, Any]:
    """Trials one after another until the budgets are used up."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = Search(job)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=job["seed"]),
        pruner=optuna.pruners.MedianPruner(),
    )
    study.optimize(search)
    return {**search.watch.line(search.player, search.settings), "trials": len(study.trials)}
