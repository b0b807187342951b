"""Shared parts of token algorithms: texts as rows of a memory, and autoregressive generation.

Data sets hold transitions, as for every environment: the text before an action, the generated tokens, and the text with
the answer appended. Learning uses whole texts, so that one forward pass over a game covers all of its states: `arrange`
merges the transitions of an episode into one row. Its observation is the whole text [L]; its action marks the policy's
own tokens [L]; its reward and its end are at the last token of each action [L].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.actions import Actor, PlainActions
from agilerl.algorithms.base.declared import DATASET
from agilerl.algorithms.base.single_agent import RLAlgorithm
from agilerl.algorithms.base.transitions import as_tensor, experience_fields
from agilerl.core.tree import Tree
from agilerl.engine.protocol import Mask, TransitionBatch
from agilerl.errors import NotAvailableYetError, ShapeError
from agilerl.modules.base import EvolvableModule
from agilerl.modules.gpt import write_on
from agilerl.networks.language import TokenNetwork, vocabularies

PAD = 0
FIX = "fix: the text before each action, the tokens of the action, and the text continued with them."


class TextActions(PlainActions):
    """Environment actions are the next tokens [K]; stored actions mark which tokens of a row were generated [L]."""

    def legal(self, agent: Actor, mask: np.ndarray) -> np.ndarray:
        raise NotAvailableYetError(f"{agent.algo} takes no masks of legal actions. fix: an environment without them.")

    def prepare(self, agent: Actor, action: Tensor, count: int) -> Tensor:
        """Return [B, L] int64, 1 for the policy's own tokens."""
        return action.reshape(count, -1).long()


def build_network(agent: RLAlgorithm, given: object, with_values: bool) -> EvolvableModule:
    """Return the given network, or build one from `net_config`.

    Raises:
        TypeError: unsupported network class. AlgorithmError: not text spaces.
    """
    vocabularies(agent.observation_space, agent.action_space, agent.algo)
    if given is None:
        spaces = agent.observation_space, agent.action_space
        return TokenNetwork(*spaces, with_values, agent.net_config, device=agent.device, random_seed=agent.seed)
    if not isinstance(given, TokenNetwork) or given.with_values != with_values:
        raise TypeError(
            f"{agent.algo}: actor_network must be a TokenNetwork with_values={with_values}; got a "
            f"{type(given).__name__}. fix: net_config={{'n_layer': .., 'n_embd': ..}}."
        )
    return given


def lengths_of(tokens: np.ndarray) -> np.ndarray:
    """Return the number of tokens before the right padding [...] of tokens [..., L]."""
    there = tokens != PAD
    return np.where(there.any(-1), tokens.shape[-1] - there[..., ::-1].argmax(-1), 0)


class TokenAlgorithm(RLAlgorithm):
    """An algorithm for a token decoder that learns from whole texts and generates token by token.

    Attributes:
        net_config: arguments of `EvolvableGPT`.
    """

    policy_class: Any = TokenNetwork
    action_spaces = ("MultiDiscrete",)
    action_form = TextActions()
    experience = DATASET
    reads_texts = True
    action_space: gym.spaces.MultiDiscrete
    net_config: dict[str, Any] | None

    def token_scores(self, outputs: Any) -> Tensor:
        """Return next-token logits [..., V] from an output of the network."""
        raise NotImplementedError(f"{type(self).__name__} must implement token_scores(outputs)")

    # --- data ---------------------------------------------------------------------------------------------------------

    def arrange(self, dataset: Any) -> Any:
        """Convert a data set of transitions to one row per text; see the module docstring.

        Raises:
            ShapeError: texts or actions of other spaces, or texts that do not continue with the previous action.
        """
        length, size = len(self.observation_space.nvec), len(self.action_space.nvec)
        before, after = (np.asarray(x) for x in (dataset.obs, dataset.next_obs))
        actions = np.asarray(dataset.action).reshape(len(before), -1)
        for what, rows, wanted in (("texts", before, length), ("texts", after, length), ("actions", actions, size)):
            if rows.shape[1:] != (wanted,):
                raise ShapeError(
                    f"the data set has {what} of {list(rows.shape[1:])} tokens; {self.algo} was built for {wanted}. "
                    "fix: agents for the spaces that the data come from."
                )
        text_vocabulary, action_vocabulary = vocabularies(self.observation_space, self.action_space, self.algo)
        for what, part, most in (
            ("texts", before, text_vocabulary),
            ("texts", after, text_vocabulary),
            ("actions", actions, action_vocabulary),
        ):
            if part.size and (part.min() < 0 or part.max() >= most or (part != np.floor(part)).any()):
                raise ShapeError(f"the data set has {what} with tokens that are no integers in 0..{most - 1}. " + FIX)
        before, after, actions = before.astype(np.int64), after.astype(np.int64), actions.astype(np.int64)
        start, end = lengths_of(before), lengths_of(after)
        place = start[:, None] + np.arange(size)
        goes_on = (np.arange(length) >= start[:, None]) | (before == after)
        wrong = (start < 1) | (end < start + size) | (start + size > length) | ~goes_on.all(1)
        inside = np.minimum(place, length - 1)
        wrong |= (np.take_along_axis(after, inside, 1) != actions).any(1)
        if wrong.any():
            raise ShapeError(
                f"{int(wrong.sum())} of {len(wrong)} texts do not continue with their action, the first of them row "
                f"{int(wrong.argmax())}. {FIX}"
            )
        last = np.flatnonzero(np.concatenate((dataset.ended[:-1], [True])))
        episode = np.concatenate(([0], np.cumsum(dataset.ended[:-1])))
        mine = np.zeros((len(last), length), np.uint8)
        reward, over = np.zeros(mine.shape), np.zeros(mine.shape, bool)
        mine[episode[:, None], place] = 1
        reward[episode, place[:, -1]], over[episode, place[:, -1]] = dataset.reward, dataset.terminated
        texts = after[last]
        ended = np.ones(len(last), bool)
        return replace(dataset, obs=texts, next_obs=texts, action=mine, reward=reward, terminated=over, ended=ended)

    def make_batch(self, experiences: Mapping[str, Any] | Sequence[Any]) -> TransitionBatch:
        """Convert sampled rows of such a memory to tensors on the agent's device, see `RLAlgorithm.make_batch`."""
        fields, owner = experience_fields(experiences), f"{self.algo}.learn"
        dtype = next(iter(self.policy_module().parameters())).dtype
        shape = (len(fields["obs"]), len(self.observation_space.nvec))
        tensors = {name: as_tensor(fields[name], self.device, f"{owner} got {name}", "numbers [B, L]") for name in
                 ("obs", "action", "reward", "done")}  # fmt: skip
        for name, value in tensors.items():
            if tuple(value.shape) != shape:
                raise ShapeError(
                    f"{owner} got {name} of shape {tuple(value.shape)}; expected {shape}: whole texts, as "
                    "train_offline stores them. fix: agent.learn(memory.sample(agent.batch_size))."
                )
        reward, done = tensors["reward"].to(dtype), tensors["done"].to(dtype)
        weight = torch.full(shape[:1], 1 / shape[0], dtype=dtype, device=reward.device)
        tokens = tensors["obs"].long()
        action = self.prepare_action(tensors["action"], shape[0])
        return TransitionBatch(tokens, action, reward, tokens, done, weight, number=self.learn_counter + 1)

    # --- acting -------------------------------------------------------------------------------------------------------

    def policy_output(self, obs: Tree, noisy: bool = False) -> Tensor:
        """Generate the next tokens [E, K] int64 after texts [E, L] greedily, token by token.

        Engines request this as the policy output, because each token depends on the previous ones.
        """
        return self._written(obs, None)

    def _written(self, obs: Tree, numbers: Tensor | None) -> Tensor:
        """Generate as `policy_output`; with uniform numbers [E, K] each token is sampled."""
        network: Any = self.policy_module()
        count = len(self.action_space.nvec)
        texts = np.asarray(obs.cpu() if isinstance(obs, Tensor) else obs)
        texts = texts[None] if texts.ndim == 1 else texts
        if texts.ndim != 2 or texts.shape[1] != len(self.observation_space.nvec) or (texts[:, 0] == PAD).any():
            raise ShapeError(
                f"{self.algo} got texts of shape {list(texts.shape)}; expected "
                f"[E, {len(self.observation_space.nvec)}] token numbers that do not begin with padding. "
                "fix: pass what the environment shows."
            )
        # A text without room for an action belongs to a finished episode; its action is ignored.
        lengths = torch.from_numpy(np.minimum(lengths_of(texts), texts.shape[1] - count)).to(self.device)
        tokens = torch.from_numpy(texts.astype(np.int64)).to(self.device)
        position = 0

        def choose(outputs: Any) -> Tensor:
            nonlocal position
            scores = self.token_scores(outputs[0])
            scores[..., PAD] = -torch.inf  # padding is never generated
            if numbers is None:
                chosen: Tensor = scores.argmax(-1)
            else:
                shares = scores.softmax(-1).cumsum(-1)
                drawn = numbers[:, position, None].to(shares) * shares[:, -1:]
                chosen = (shares <= drawn).sum(-1).clamp_max(scores.shape[-1] - 1)
            position += 1
            return chosen

        return write_on([network.gpt], tokens, lengths, count, choose)

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """Return the chosen tokens [..., K] int64."""
        return outputs.cpu().numpy()

    def get_action(self, obs: Any, epsilon: float = 0.0, action_mask: Mask = None) -> np.ndarray:
        """Generate the next tokens [E, K] int64 after texts [E, L]: sampled in training, else greedy.

        `epsilon` is ignored; masks raise NotAvailableYetError.
        """
        if action_mask is not None:
            self.legal_choices(np.asarray(action_mask))
        if not self.training:
            return self.greedy(self.policy_output(obs))
        rows = 1 if np.ndim(obs) == 1 else len(obs)
        numbers = torch.from_numpy(self._exploration.random((rows, len(self.action_space.nvec))))
        return self.greedy(self._written(obs, numbers))

    def _greedy(self, obs: Tree, mask: Mask = None) -> np.ndarray:
        """Return greedy actions [E, K] for the environment, regardless of the agent's mode."""
        if mask is not None:
            self.legal_choices(np.asarray(mask))
        return self.greedy(self.policy_output(obs))

    def random_action(self, rng: np.random.Generator, shape: tuple[int, ...], mask: Mask = None) -> np.ndarray:
        """Sample uniform tokens [*shape, K] int64 without padding."""
        sizes = self.action_space.nvec
        return rng.integers(1, int(sizes[0]), (*shape, len(sizes)))
