"""vLLM as what writes completions: an optional package, on machines with a GPU that it supports."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agilerl.errors import ConfigError
from agilerl.language import needs
from agilerl.language.base import BaseModel, Forward
from agilerl.language.generate import Sampling
from agilerl.language.scoring import Texts, first_end


class VLLM:
    """A `RolloutBackend` that writes with vLLM's engine, to which the adapter is handed as files before each call.

    Args:
        base: the model; it must have come from a folder or a hub id, which vLLM loads a copy of.
        gpu_memory_utilization: share of the device's memory for that copy and its cache.

    Raises:
        ConfigError: vLLM is not installed, or the base was made in memory.
    """

    name = "vllm"

    def __init__(self, base: BaseModel, gpu_memory_utilization: float = 0.4) -> None:
        if not base.source:
            raise ConfigError("rollout_backend='vllm' loads the base by itself. fix: model_name='folder or hub id'.")
        self._vllm = needs("vllm", "rollout_backend='vllm'")
        self.engine: Any = self._vllm.LLM(
            model=base.source, enable_lora=True, gpu_memory_utilization=gpu_memory_utilization, enforce_eager=True
        )
        self._written = 0

    def write(
        self, base: BaseModel, forward: Forward, prompts: tuple[Tensor, Tensor], group: int, how: Sequence[Sampling],
        numbers: Tensor | None, adapters: Sequence[Any] = (),
    ) -> Texts:  # fmt: skip
        """As of `RolloutBackend`; `adapters` are the members' networks, whose files vLLM reads."""
        tokens, attention = prompts
        rows = [row[mask].tolist() for row, mask in zip(tokens, attention, strict=True)]
        per, made = len(rows) // len(how), []
        for member, own in enumerate(how):
            mine = rows[member * per : (member + 1) * per]
            made += self._of_member(mine, group, own, numbers, base.end_ids, adapters[member] if adapters else None)
        length, pad = how[0].max_tokens, base.pad_id
        written = torch.full((len(made), length), pad, dtype=torch.long)
        for number, completion in enumerate(made):
            written[number, : len(completion)] = torch.tensor(list(completion[:length]))
        written = written.to(tokens.device)
        said = first_end(written, base.end_ids)
        tokens, attention = (x.repeat_interleave(group, 0) for x in prompts)
        return Texts(torch.cat((tokens, written), -1), torch.cat((attention, said), -1), said)

    def _of_member(
        self,
        rows: list[list[int]],
        group: int,
        own: Sampling,
        numbers: Tensor | None,
        ends: Sequence[int],
        adapter: Any,
    ) -> list[Sequence[int]]:
        seed = None if numbers is None else int(numbers[0, 0].item() * 2**31)
        parameters = self._vllm.SamplingParams(
            n=group, max_tokens=own.max_tokens, min_tokens=own.min_tokens, seed=seed, top_p=own.top_p,
            temperature=0.0 if numbers is None else own.temperature, top_k=own.top_k or -1,
            stop_token_ids=list(ends),
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            request = None
            if adapter is not None:
                adapter.save_pretrained(Path(folder))
                self._written += 1
                lora = needs("vllm.lora.request", "rollout_backend='vllm'")
                request = lora.LoRARequest(f"adapter-{self._written}", self._written, folder)
            given = [{"prompt_token_ids": row} for row in rows]
            outputs = self.engine.generate(given, parameters, lora_request=request, use_tqdm=False)
        return [answer.token_ids for output in outputs for answer in output.outputs]
