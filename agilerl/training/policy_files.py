"""The best policy of a run on disk: `best/` in its directory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from agilerl.algorithms.base.adapted import adapted
from agilerl.algorithms.base.predict import ACTING
from agilerl.algorithms.base.wrapped import overrides
from agilerl.core.checkpoint import load_tree, save_tree
from agilerl.core.files import write_atomic
from agilerl.core.hostile import malformed
from agilerl.errors import RunError
from agilerl.runs.directory import RunDirectory
from agilerl.telemetry.files import jsonable
from agilerl.views.standalone.policy import PolicyError, policy_of


def write_policy(folder: Path, spec: Mapping[str, Any], state: Mapping[str, Any], is_plain: bool = True) -> None:
    """Write policy.safetensors (tensors named `policy.<name>`, and the spec), policy.json, and policy.py for a policy
    that it covers.

    Equal tensors give equal files, regardless of their order.

    The first file suffices to rebuild the policy, so that a kill between the writes loses nothing. The second is for
    readers and for policy.py, which loads the policy and acts in plain PyTorch.

    Args:
        folder: `best/` of the run.
        spec: JSON values: algorithm, spaces, network, normaliser (`agent.policy_spec()`).
        state: name -> tensor (`agent.policy_state()`).
        is_plain: whether the agent acts by its networks alone, as policy.py does.
    """
    save_tree(folder / "policy.safetensors", {"policy": dict(sorted(state.items())), "spec": dict(spec)})
    write_atomic(folder / "policy.json", json.dumps(jsonable(spec), indent=2) + "\n")
    try:
        policy_of(jsonable(spec), dict(state))
    except PolicyError:
        is_plain = False
    loader = folder / "policy.py"
    if is_plain:
        write_atomic(loader, (resources.files("agilerl.views.standalone") / "policy.py").read_text(encoding="utf-8"))
    else:
        loader.unlink(missing_ok=True)


def write_best(run: Path, agent: Any) -> None:
    """Write the best agent of a run: see `write_policy`; a language policy as a PEFT folder with the agent's state."""
    if not adapted(agent).learns_language:
        write_policy(run / "best", agent.policy_spec(), agent.policy_state(), overrides(agent, *ACTING) is None)
        return
    for incomplete in run.glob(".best-*"):  # of a killed process
        shutil.rmtree(incomplete, ignore_errors=True)
    agent.save_checkpoint(run / "best")


def load_language_policy(run: RunDirectory, cls: Any, device: str) -> Any:
    """Load the agent of a class from best/, on its base model."""
    folder = run.path / "best"
    if not folder.is_dir():
        raise _holds_no_policy(run)
    return cls.load(folder, device)


def load_policy(run: RunDirectory) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load (spec, state) of the best policy."""
    path = run.path / "best" / "policy.safetensors"
    if not path.is_file():
        raise _holds_no_policy(run)
    tree = load_tree(path)
    with malformed(path):
        return dict(tree["spec"]), dict(tree["policy"])


def _holds_no_policy(run: RunDirectory) -> RunError:
    status = run.facts().get("status", "unknown")
    return RunError(f"{run.path} holds no policy (status: {status}). fix: train again, or name another run.")
