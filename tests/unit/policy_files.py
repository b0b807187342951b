"""Policies of agents as files, without a run around them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from agilerl.telemetry.files import jsonable
from agilerl.views.standalone.policy import load


def alone(agent: Any, folder: Path) -> Any:
    """The policy as the loader without the package reads it, written to `folder`."""
    (folder / "policy.json").write_text(json.dumps(jsonable(agent.policy_spec())))
    save_file({f"policy.{k}": v for k, v in agent.policy_state().items()}, folder / "policy.safetensors")
    return load(folder)
