"""Language algorithms: an adapter on a frozen base model, trained on rewards, preferences or examples.

They have no spaces, and prompts instead of observations. See `language.collect.collector` for training a population;
`get_action`, `learn` and `test` do the same for a single agent.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn, optim

from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.algorithms.base.declared import Experience
from agilerl.algorithms.base.optimizer import OptimizerWrapper
from agilerl.algorithms.base.registry import HyperparameterConfig, NetworkGroup, follow
from agilerl.algorithms.base.schedules import Schedule, scheduled
from agilerl.core import foreign
from agilerl.core.checkpoint import load_tree, save_tree
from agilerl.core.files import put_files
from agilerl.core.ranges import Count, check
from agilerl.core.rng import Purpose, resolve_seed, seeds, stream
from agilerl.core.signatures import also_takes, construct
from agilerl.engine.protocol import UpdateResult
from agilerl.errors import AlgorithmError, ConfigError, EnvError, RunError, unknown_choice, warn_once
from agilerl.language.algorithms.batches import TextBatch
from agilerl.language.algorithms.scoring import scores_by_item
from agilerl.language.base import BaseModel, load_base
from agilerl.language.engines import AdapterEngine
from agilerl.language.generate import BACKENDS
from agilerl.language.networks import AdapterNetwork
from agilerl.language.scoring import Texts
from agilerl.language.vllm import vllm_settings
from agilerl.llm_envs.by_id import make_language_env
from agilerl.modules.paths import resolve
from agilerl.telemetry.evaluation import Evaluation

STATE = "agent.safetensors"
"""File in a checkpoint folder with state that PEFT does not save: moments, hyperparameters, generators."""
Backend = Literal["prefix-shared", "hf", "vllm"]


class LLMAlgorithm(EvolvableAlgorithm):
    """An agent whose policy is an adapter on a frozen language model.

    Args:
        actor_network: the base: a `BaseModel`, a Hugging Face causal language model, or the `AdapterNetwork` itself.
        model_name: alternatively the folder or hub id of a model, loaded once and shared by all agents.
        tokenizer: tokenizer of the base, if the base is given as a model.
        lora_config: adapter configuration: a PEFT configuration or its fields; LoRA of rank 16 on every linear layer by
            default.
        pad_token_id, pad_token: override those of the tokenizer.
        micro_batch_size: texts per pass through the base; gradients are accumulated over passes, which does not change
            the result. None: all at once.
        rollout_backend: generation backend, see `agilerl.language.generate`.
        lr_schedule: learning-rate schedule over the budget of a training function: "constant", or "linear" to 0.

    Attributes:
        progress: used fraction of the budget, for the schedule; set by training functions.

    See `EvolvableAlgorithm` for the other arguments.
    """

    action_spaces: ClassVar[tuple[str, ...]] = ()
    experience: ClassVar[Experience]
    reads_texts = True
    learns_language = True

    actor: AdapterNetwork
    max_output_tokens: int
    """Maximum length of a completion, for algorithms that generate."""
    update_epochs: int = 1
    max_grad_norm: float | None = None
    max_model_len: int | None = None
    vllm_config: Mapping[str, Any] | None = None

    def __init__(
        self, actor_network: Any = None, model_name: str | Path | None = None,
        tokenizer: foreign.Tokenizer | None = None, lora_config: Any = None, index: int = 0,
        hp_config: HyperparameterConfig | None = None, pad_token_id: int | None = None, pad_token: str | None = None,
        micro_batch_size: int | None = None, rollout_backend: Backend = "prefix-shared",
        device: str | torch.device = "cpu", accelerator: foreign.Accelerator | None = None, seed: int | None = None,
        lr_schedule: Schedule = "constant",
    ) -> None:  # fmt: skip
        super().__init__(index, hp_config, device, accelerator)
        self.seed = resolve_seed(seed)
        if seed is None and index:
            self.seed = int(seeds(self.seed, Purpose.INITIAL_WEIGHTS, 1, generation=3, member=abs(int(index)))[0])
        check(f"{self.algo}: micro_batch_size", micro_batch_size, Count | None, 1, AlgorithmError)
        if rollout_backend not in (*BACKENDS, "vllm"):
            raise ConfigError(f"rollout_backend must be one of {[*BACKENDS, 'vllm']}; got {rollout_backend!r}.")
        self.micro_batch_size, self.rollout_backend = micro_batch_size, rollout_backend
        if lr_schedule not in get_args(Schedule):
            raise ConfigError(unknown_choice("schedule", str(lr_schedule), get_args(Schedule)))
        self.lr_schedule, self.progress = lr_schedule, 0.0
        self.actor = self._policy(actor_network, model_name, tokenizer, lora_config)
        if pad_token is not None:
            pad_token_id = self.base.tokenizer.convert_tokens_to_ids(pad_token)
        if pad_token_id is not None:
            self.base.pad_id = int(pad_token_id)
        self.learn_counter = 0
        self.environment: dict[str, Any] | None = None

    def take_published(
        self, max_model_len: int | None, use_vllm: bool, vllm_config: object, gradient_checkpointing: bool,
        use_liger_loss: bool, micro_batch_size_per_gpu: int | None, update_epochs: int | None = None,
    ) -> None:  # fmt: skip
        """Apply arguments of the published library that are renamed or unused here.

        Args:
            max_model_len: maximum tokens of a prompt and its completion; None: the base's context.
            use_vllm: same as `rollout_backend="vllm"`. vllm_config: engine options, see `language.vllm.VLLMConfig`.
            gradient_checkpointing, use_liger_loss: no effect on results; reported once.
            micro_batch_size_per_gpu: alias of `micro_batch_size`.
            update_epochs: passes over each batch; None: the algorithm has the argument itself.

        Raises:
            AlgorithmError: a number out of range, or conflicting values for two names of one argument.
        """
        for name, value in (
            ("max_model_len", max_model_len), ("micro_batch_size_per_gpu", micro_batch_size_per_gpu),
            ("update_epochs", update_epochs),
        ):  # fmt: skip
            check(f"{self.algo}: {name}", value, Count | None, 1, AlgorithmError)
        if micro_batch_size_per_gpu is not None:
            if self.micro_batch_size not in (None, micro_batch_size_per_gpu):
                raise AlgorithmError(
                    f"{self.algo}: micro_batch_size={self.micro_batch_size} and micro_batch_size_per_gpu="
                    f"{micro_batch_size_per_gpu} are one argument. fix: micro_batch_size alone."
                )
            self.micro_batch_size = micro_batch_size_per_gpu
        settings = vllm_settings(vllm_config)
        chosen = {
            "max_model_len": (max_model_len, type(self).max_model_len),
            "vllm_config": (settings, type(self).vllm_config),
            "update_epochs": (update_epochs, type(self).update_epochs),
        }
        for name, (setting, default) in chosen.items():  # class defaults are not saved
            if setting is not None and setting != default:
                setattr(self, name, setting)
        writes = self.experience.name == "completions"
        if use_vllm and writes:
            self.rollout_backend = "vllm"
        unused = settings is not None and self.rollout_backend != "vllm"
        meaningless = {
            "use_vllm": "it writes no completions" if use_vllm and not writes else "",
            "vllm_config": "vLLM does not write: use_vllm=True lets it" if unused else "",
            "gradient_checkpointing": "micro_batch_size bounds the memory of a pass" if gradient_checkpointing else "",
            "use_liger_loss": "log-probabilities are computed in chunks already" if use_liger_loss else "",
        }
        for name, reason in meaningless.items():
            if reason:
                warn_once(f"{self.algo} {name}", f"{self.algo}: {name} changes nothing here: {reason}.", stacklevel=4)

    def passes(
        self, engine: AdapterEngine, texts: Texts, rewards: Tensor | None, rngs: Sequence[np.random.Generator]
    ) -> Iterator[TextBatch]:
        """Yield the optimiser steps of `update_epochs` passes over pairs or examples, numbered consecutively."""
        number = 0
        for _ in range(self.update_epochs):
            for batch in self.arrange(engine, texts, rewards, rngs):
                yield replace(batch, number=number)
                number += 1

    def arrange(
        self, engine: Any, texts: Texts, rewards: Any, rngs: Sequence[np.random.Generator]
    ) -> Iterator[TextBatch]:
        """Yield the optimiser steps of one pass over texts."""
        raise NotImplementedError(f"{type(self).__name__} must implement arrange(engine, texts, rewards, rngs)")

    def _policy(self, model: object, name: Any, tokenizer: foreign.Tokenizer | None, config: Any) -> AdapterNetwork:
        if (model is None) == (name is None):
            raise AlgorithmError(
                f"{self.algo} needs one base model: actor_network= (a model) or model_name= (a folder or hub id); "
                f"got {'neither' if model is None else 'both'}. fix: model_name='path/to/model'."
            )
        if isinstance(model, AdapterNetwork):
            return model
        if name is not None:
            base = load_base(name, device=self.device)
        elif isinstance(model, BaseModel):
            base = model
        elif isinstance(model, nn.Module) and hasattr(model, "get_output_embeddings"):
            if hasattr(model, "peft_config"):
                raise AlgorithmError(f"{self.algo}: actor_network has adapters. fix: the base model, and lora_config=.")
            if tokenizer is None:
                raise AlgorithmError(f"{self.algo}: a model needs its tokenizer. fix: tokenizer=load_tokenizer(path).")
            base = BaseModel(model, tokenizer)
        else:
            raise TypeError(
                f"{self.algo}: actor_network must be a causal language model; got {type(model).__name__}. "
                "fix: model_name='path/to/model', or AutoModelForCausalLM.from_pretrained(...) with tokenizer=."
            )
        return AdapterNetwork(base, config, device=base.device, random_seed=self.seed)

    def register_adapter(
        self, name: str, reference: str | None, optimizer: str, lr: str, weight_decay: float, policy: bool = False
    ) -> None:
        """Register an adapter with AdamW and, if it has one, its frozen copy."""
        network, frozen = resolve(self, name), None
        if reference is not None:
            frozen = network.clone()
            frozen.requires_grad_(False)
            setattr(self, reference, frozen)
        options = {"weight_decay": weight_decay}
        setattr(self, optimizer, OptimizerWrapper(optim.AdamW, network, resolve(self, lr), options, lr_name=lr))
        self.register_network_group(NetworkGroup(network, frozen, policy=policy))
        follow(self, "_follow_in_optimizers", "weight_decay")

    def _follow_in_optimizers(self, name: str, value: float) -> None:
        """Apply a new value of an option to the optimisers of all adapters."""
        for config in self.registry.optimizers:
            config.wrapper(self).set_option(name, value)

    # --- base model -------------------------------------------------------------------------------------------------

    @property
    def base(self) -> BaseModel:
        """The frozen model below the adapter."""
        return self.actor.base

    @property
    def context(self) -> int | None:
        """Maximum tokens of prompt and completion: the lower of `max_model_len` and the base's context; None: any."""
        limits = [limit for limit in (self.base.context, self.max_model_len) if limit is not None]
        return min(limits, default=None)

    @property
    def pad_token_id(self) -> int:
        """Padding token; it may equal the end-of-text token."""
        return self.base.pad_id

    def rng(self, number: int) -> np.random.Generator:
        """Return the random stream of this agent's `number`-th call outside of a training function."""
        return stream(self.seed, Purpose.EXPLORATION, number, self.index)

    def _described(self) -> Iterator[str]:
        *lines, _ = super()._described()
        yield from lines
        yield f"trained   {self.steps[-1]:,} {self.experience.steps}"

    # --- evaluation -------------------------------------------------------------------------------------------------

    def evaluate(  # type: ignore[override]  # of a split
        self, split: str | None = None, env: Any = None
    ) -> Evaluation:
        """Score every item of a split: the reward of the greedy completion, the margin of a pair, or the
        log-probability of an example's tokens; neither `fitness` nor training is affected.

        Args:
            split: "report", "test" or "train"; None: the held-out "report" split if it exists, else "test".
            env: a gym; None creates the environment of the agent's training run.

        Raises:
            EnvError: no environment is given and none is known. ConfigError: no such split.
        """
        env = self._asked() if env is None else env
        self.check_context(env)
        split = split or ("report" if "report" in env.splits else "test")
        values = scores_by_item(self, env, split)
        return Evaluation.from_returns(values.tolist(), f"{self.experience.steps} of the {split} split")

    def check_context(self, env: Any) -> None:
        """Raise ConfigError if an item of a gym with its completion exceeds the base's context.

        Beyond its context a model with learned positions raises, and one with rotary positions was never trained.
        """
        most = self.context
        if most is None:
            return
        for name in env.splits:
            items = env.split(name)
            if self.experience.name == "completions":
                prompts = [len(item.tokens) for item in items]
                if max(prompts) + self.max_output_tokens > most:
                    raise ConfigError(
                        f"a prompt of {max(prompts)} tokens and a completion of {self.max_output_tokens} do not fit "
                        f"into the {self._limit_of()} of {most}. {_fitting(prompts, self.max_output_tokens, most)}"
                    )
                continue
            lengths = [_length(item, self.experience.name) for item in items]
            row = int(np.argmax(lengths))
            if lengths[row] > most:
                asked = len(items[row].prompt)
                raise ConfigError(
                    f"item {row} of the split {name!r} has {lengths[row]} tokens, {asked} of its prompt and "
                    f"{lengths[row] - asked} of its answer, which do not fit into the {self._limit_of()} of {most}. "
                    f"fix: max_context_length={most} of the environment, which leaves longer ones out."
                )

    def _limit_of(self) -> str:
        return "base's context" if self.context == self.base.context else "max_model_len"

    def _asked(self) -> Any:
        place = self.evaluated_in
        if place is not None and place.env is not None:
            return place()
        environment = self.environment or {}
        if not environment.get("id"):
            raise EnvError(
                f"{self.algo}.evaluate() does not know an environment: the training environment was passed as an "
                "object, which is not saved, or there was none. fix: agent.evaluate(env=gym)."
            )
        return make_language_env(
            environment["id"], self.base.tokenizer, self.experience.name, **dict(environment["kwargs"] or {})
        )

    def scheduled(self, lr: float) -> float:
        """Return the learning rate at the current point of the budget."""
        return scheduled(lr, self.lr_schedule, self.progress)

    # --- engine and source interface --------------------------------------------------------------------------------

    def update(self, engine: AdapterEngine, batch: TextBatch) -> UpdateResult:
        """Perform one optimiser step of every member in `engine`."""
        raise NotImplementedError(f"{type(self).__name__} must implement update(engine, batch)")

    def stacking(self) -> tuple[Any, ...]:
        """Return the key that members must share to learn in one pass: batch format and options."""
        run = (self.micro_batch_size, self.rollout_backend, self.update_epochs, self.context)
        return (type(self), *run, *self.update_options())

    def update_interval(self) -> int:
        """Ignored here: completions are learned from immediately."""
        return 1

    def max_norm(self, like: Tensor) -> Tensor | None:
        """Return the gradient-norm limit in the engines' format."""
        return None if not self.max_grad_norm else like.new_tensor([[float(self.max_grad_norm)]])

    # --- files and copies -------------------------------------------------------------------------------------------

    def save_pretrained(self, folder: str | Path) -> None:
        """Save the adapter and the tokenizer in the format of PEFT and transformers."""
        self.actor.save_pretrained(folder)

    @also_takes(lora_only=None, save_optimizer=None)
    def save_checkpoint(self, path: str | Path) -> None:
        """Save a folder: the adapter in PEFT format, the tokenizer, and all other agent state.

        Each file is written atomically, and other files in the folder are kept. The base is identified by its hash and
        not copied.
        """
        folder = Path(str(path).removesuffix(".pt"))
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            self.save_pretrained(temporary)
            save_tree(temporary / STATE, self.run_state())
            put_files(temporary, folder, STATE)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def load_checkpoint(self, path: str | Path, load_optimizer: bool = True) -> None:
        """Load a folder of `save_checkpoint` in place; without `load_optimizer` with fresh optimisers.

        Raises:
            RunError: another base, or missing or damaged files.
        """
        self.load_run_state(load_tree(_state_in(path)), str(path))
        if not load_optimizer:
            self.reinit_optimizers()

    @classmethod
    def load(
        cls, path: str | Path, device: str | torch.device = "cpu", accelerator: foreign.Accelerator | None = None
    ) -> Self:
        """Load the agent from a folder of `save_checkpoint`, on the base that it names."""
        agent = super().load(_state_in(path), device, accelerator)
        agent.load_checkpoint(path)  # includes the generators
        return agent

    def load_pretrained(self, folder: str | Path) -> None:
        """Load the adapter from a folder in PEFT format."""
        self.actor.load_pretrained(folder)

    @classmethod
    def _blank(
        cls, state: Mapping[str, Any], device: str | torch.device, accelerator: foreign.Accelerator | None
    ) -> Self:
        spec = state["networks"]["actor"]["spec"]
        actor = AdapterNetwork.from_spec(spec, device=device)
        agent: Self = construct(cls, actor_network=actor, device=device, accelerator=accelerator)
        return agent

    def probe_observations(self, count: int = 256) -> Any:
        """Return None: no mutation here changes a policy's completions."""
        return None

    @classmethod
    def population(cls, size: int, *, seed: int | None = None, **kwargs: Any) -> list[Self]:
        """Create `size` agents on one base, with indices 0 .. size − 1 and separate adapters."""
        member_seeds = seeds(resolve_seed(seed), Purpose.INITIAL_WEIGHTS, size)
        base = kwargs.get("actor_network")
        if isinstance(base, nn.Module) and not isinstance(base, AdapterNetwork):
            kwargs = {**kwargs, "actor_network": BaseModel(base, kwargs.get("tokenizer"))}
        return [construct(cls, index=i, seed=int(member_seeds[i]), **kwargs) for i in range(size)]


def _length(item: Any, kind: str) -> int:
    """Return the number of tokens of an example, or of a pair with the longer of its completions."""
    answers = (item.chosen, item.rejected) if kind == "preferences" else (item.completion,)
    return len(item.prompt) + max(map(len, answers))


def _fitting(prompts: list[int], written: int, most: int) -> str:
    """Suggest how to fit prompts of these lengths and completions of `written` tokens into `most`."""
    longest, shortest = max(prompts), min(prompts)
    ways = []
    if shortest <= most - written:
        ways.append(f"max_context_length={most - written} of the environment, which leaves longer prompts out")
    if longest < most:
        ways.append(f"max_output_tokens={most - longest}")
    elif not ways and shortest < most:
        ways.append(f"max_context_length={shortest} of the environment and max_output_tokens={most - shortest}")
    return f"fix: {', or '.join(ways or ['a base with a longer context'])}."


def _state_in(path: str | Path) -> Path:
    folder = Path(str(path).removesuffix(".pt"))
    file = folder / STATE
    if not file.is_file():
        raise RunError(f"{folder} holds no agent: {STATE} is missing. fix: a folder that save_checkpoint has written.")
    return file
