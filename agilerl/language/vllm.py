"""Generation with vLLM: an optional package, on machines with a supported GPU."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agilerl.errors import ConfigError, unknown_choice, warn_once
from agilerl.language import needs
from agilerl.language.base import BaseModel, Forward
from agilerl.language.generate import Sampling
from agilerl.language.scoring import Texts, first_end


@dataclass(frozen=True)
class VLLMConfig:
    """Settings of vLLM's engine.

    Args:
        tensor_parallel_size: devices that the engine's copy of the base is split over.
        gpu_memory_utilization: share of each device's memory for that copy and its cache.
        max_num_seqs: completions generated at once.
        sleep_mode: release the engine's memory while the adapters learn; not available, ignored with a warning.
    """

    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.3
    max_num_seqs: int = 8
    sleep_mode: bool = False

    def __post_init__(self) -> None:
        if self.tensor_parallel_size < 1 or self.max_num_seqs < 1 or not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                "VLLMConfig needs tensor_parallel_size and max_num_seqs of at least 1, gpu_memory_utilization in "
                f"(0, 1]; got {self.tensor_parallel_size}, {self.max_num_seqs} and {self.gpu_memory_utilization}. "
                "fix: VLLMConfig()."
            )


def vllm_settings(config: object) -> dict[str, Any] | None:
    """Arguments of vLLM's engine, from a `VLLMConfig` or a mapping with its fields; None for None.

    Raises:
        ConfigError: another object, an unknown field, or a number out of range.
    """
    if config is None:
        return None
    names = [field.name for field in fields(VLLMConfig)]
    if isinstance(config, Mapping):
        for name in config:
            if name not in names:
                raise ConfigError(unknown_choice("field of vllm_config", str(name), names))
        config = VLLMConfig(**config)
    if not isinstance(config, VLLMConfig):
        raise ConfigError(f"vllm_config is a VLLMConfig or mapping; got {type(config).__name__}. fix: VLLMConfig().")
    if config.sleep_mode:
        warn_once("vllm sleep_mode", "VLLMConfig: sleep_mode changes nothing here: the engine keeps its memory.")
    return {name: value for name, value in asdict(config).items() if name != "sleep_mode"}


class VLLM:
    """A `RolloutBackend` with vLLM's engine, which reads the adapter from files before each call.

    Args:
        base: the model, loaded from a folder or hub id, of which vLLM loads a copy.
        settings: of its engine, see `VLLMConfig`; None: 0.4 of the device's memory for that copy and its cache.

    Raises:
        ConfigError: vLLM is not installed, or the base was made in memory.
    """

    name = "vllm"

    def __init__(self, base: BaseModel, settings: Mapping[str, Any] | None = None) -> None:
        if not base.source:
            raise ConfigError("rollout_backend='vllm' loads the base by itself. fix: model_name='folder or hub id'.")
        self._vllm = needs("vllm", "rollout_backend='vllm'")
        chosen = {"gpu_memory_utilization": 0.4, **(settings or {})}
        self.engine: Any = self._vllm.LLM(model=base.source, enable_lora=True, enforce_eager=True, **chosen)
        self._written = 0

    def write(
        self, base: BaseModel, forward: Forward, prompts: tuple[Tensor, Tensor], group: int, how: Sequence[Sampling],
        numbers: Tensor | None, adapters: Sequence[Any] = (),
    ) -> Texts:  # fmt: skip
        """See `RolloutBackend`; `adapters` are the members' networks, which vLLM reads from files."""
        tokens, attention = prompts
        rows = [row[mask].tolist() for row, mask in zip(tokens, attention, strict=True)]
        prompts_per_member, completions = len(rows) // len(how), []
        for member, sampling in enumerate(how):
            mine = rows[member * prompts_per_member : (member + 1) * prompts_per_member]
            completions += self._of_member(
                mine, group, sampling, numbers, base.end_ids, adapters[member] if adapters else None
            )
        length, pad = how[0].max_tokens, base.pad_id
        written = torch.full((len(completions), length), pad, dtype=torch.long)
        for number, completion in enumerate(completions):
            written[number, : len(completion)] = torch.tensor(list(completion[:length]))
        written = written.to(tokens.device)
        completion_mask = first_end(written, base.end_ids)
        tokens, attention = (x.repeat_interleave(group, 0) for x in prompts)
        return Texts(torch.cat((tokens, written), -1), torch.cat((attention, completion_mask), -1), completion_mask)

    def _of_member(
        self,
        rows: list[list[int]],
        group: int,
        sampling: Sampling,
        numbers: Tensor | None,
        ends: Sequence[int],
        adapter: Any,
    ) -> list[Sequence[int]]:
        seed = None if numbers is None else int(numbers[0, 0].item() * 2**31)
        parameters = self._vllm.SamplingParams(
            n=group, max_tokens=sampling.max_tokens, min_tokens=sampling.min_tokens, seed=seed, top_p=sampling.top_p,
            temperature=0.0 if numbers is None else sampling.temperature, top_k=sampling.top_k or -1,
            stop_token_ids=list(ends),
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            request = None
            if adapter is not None:
                adapter.save_pretrained(Path(folder))
                self._written += 1
                lora = needs("vllm.lora.request", "rollout_backend='vllm'")
                request = lora.LoRARequest(f"adapter-{self._written}", self._written, folder)
            prompts = [{"prompt_token_ids": row} for row in rows]
            outputs = self.engine.generate(prompts, parameters, lora_request=request, use_tqdm=False)
        return [answer.token_ids for output in outputs for answer in output.outputs]
