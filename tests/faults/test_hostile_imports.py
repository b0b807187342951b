"""Files offered as policies of other libraries: nothing runs, nothing is unpacked, and one line says why."""

from __future__ import annotations

import io
import json
import os
import pickle
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from agilerl.algorithms.imported import files
from agilerl.algorithms.imported.load import load
from agilerl.cli import app
from agilerl.errors import AgileRLError
from agilerl.integrations import sb3

LAYERS = {"0": (4, 8), "2": (8, 2)}


class Touch:
    """Unpickled, it makes the canary file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.canary}",)


def saved(tree: Any) -> bytes:
    file = io.BytesIO()
    torch.save(tree, file)
    return file.getvalue()


def tensors(**changes: Any) -> dict[str, Any]:
    """The state dict of a DQN."""
    content: dict[str, Any] = {}
    for net in ("q_net", "q_net_target"):
        for k, (columns, rows) in LAYERS.items():
            content |= {
                f"{net}.q_net.{k}.weight": torch.ones(rows, columns),
                f"{net}.q_net.{k}.bias": torch.zeros(rows),
            }
    return {**content, **changes}


def zipped(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def model(policy: Any = None, data: Any = None, **members: bytes) -> bytes:
    """A file of Stable-Baselines3; `members` may replace its parts."""
    content = policy if isinstance(policy, bytes) else saved(tensors() if policy is None else policy)
    text = data if isinstance(data, bytes) else json.dumps(data or {}).encode()
    return zipped({"data": text, "policy.pth": content, **members})


def twice() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("policy.pth", saved(tensors()))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("policy.pth", saved(tensors()))
    return file.getvalue()


def lying_size() -> bytes:
    """The directory of the zip says 10 bytes of `policy.pth`; there are 3 MB."""
    content = zipped({"policy.pth": b"\0" * 3_000_000}, zipfile.ZIP_DEFLATED)
    return content.replace((3_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))


def repacked(content: bytes) -> bytes:
    """What `torch.save` wrote, with its members compressed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    return zipped(members, zipfile.ZIP_DEFLATED)


BOMB = b"\0" * 3_000_000
HOSTILE: dict[str, Callable[[Path], bytes]] = {
    "a pickle": lambda c: pickle.dumps(Touch(c)),
    "empty": lambda c: b"",
    "no zip": lambda c: b"PK\x03\x04" + b"\0" * 100,
    "an empty zip": lambda c: zipped({}),
    "truncated": lambda c: model()[:-50],
    "a policy that is a pickle": lambda c: model(pickle.dumps(Touch(c))),
    "a policy of torch.save that runs code": lambda c: model(saved({"q_net.q_net.0.weight": Touch(c)})),
    "variables that run code": lambda c: zipped(
        {"policy.pth": saved(sac()), "pytorch_variables.pth": saved({"log_ent_coef": Touch(c)})}
    ),
    "a policy that is a legacy pickle": lambda c: model(
        pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(Touch(c), 2)
    ),
    "data that is a pickle": lambda c: model(data=pickle.dumps(Touch(c))),
    "data nested deeply": lambda c: model(data=b"[" * 100_000 + b"]" * 100_000),
    "data that is a list": lambda c: model(data=b"[1]"),
    "members of one name": lambda c: twice(),
    "a bomb as policy": lambda c: zipped({"policy.pth": BOMB}, zipfile.ZIP_DEFLATED),
    "a bomb of a size that is not told": lambda c: lying_size(),
    "a bomb inside of torch.save": lambda c: model(
        repacked(saved({"q_net.q_net.0.weight": torch.zeros(750_000)}))
    ),
    "many members": lambda c: zipped({f"{k}": b"" for k in range(10_001)}),
    "a view of 2^40 numbers": lambda c: model(
        tensors(**{"q_net.q_net.0.weight": torch.zeros(1, 1).expand(2**20, 2**20)})
    ),
    "tensors without numbers": lambda c: model(tensors(**{"q_net.q_net.0.weight": torch.zeros(0, 4)})),
    "sparse tensors": lambda c: model(tensors(**{"q_net.q_net.0.weight": torch.eye(8, 4).to_sparse()})),
    "complex tensors": lambda c: model(tensors(**{"q_net.q_net.0.weight": torch.zeros(8, 4, dtype=torch.complex64)})),
    "a tensor in place of a name": lambda c: model({5: torch.zeros(2)}),
    "a hundred layers": lambda c: model(
        {f"{net}.q_net.{2 * k}.{kind}": torch.zeros((4, 4) if kind == "weight" else 4)
         for net in ("q_net", "q_net_target") for k in range(100) for kind in ("weight", "bias")}
    ),
    "an activation to import": lambda c: model(
        data={"policy_kwargs": {"activation_fn": "<class 'torch.nn.modules.activation.__import__'>"}}
    ),
}  # fmt: skip


def sac() -> dict[str, Any]:
    def layers(name: str, columns: int, rows: int) -> dict[str, Any]:
        return {f"{name}.weight": torch.ones(rows, columns), f"{name}.bias": torch.zeros(rows)}

    content = layers("actor.latent_pi.0", 4, 8) | layers("actor.mu", 8, 1) | layers("actor.log_std", 8, 1)
    for critic in ("critic.qf0", "critic.qf1", "critic_target.qf0", "critic_target.qf1"):
        content |= layers(f"{critic}.0", 5, 8) | layers(f"{critic}.2", 8, 1)
    return content


class Box(gym.Env[np.ndarray, Any]):
    observation_space = gym.spaces.Box(-1, 1, (4,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(4, np.float32), 0.0, True, False, {}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_runs_nothing_and_gets_one_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    if "bomb" in kind:
        monkeypatch.setattr(files, "MAX_MEMBER", 2**20)  # in place of 256 MiB, for the time of this test
    canary, path = tmp_path / "canary", tmp_path / "model.zip"
    path.write_bytes(HOSTILE[kind](canary))
    before, began = set(tmp_path.rglob("*")), time.monotonic()
    env: Any = Box() if kind.startswith("variables") else "CartPole-v1"
    for read in (sb3.load, load):
        with pytest.raises(AgileRLError) as caught:
            read(path, env)
        text = str(caught.value)
        assert "\n" not in text
        assert len(text) < 1200, text
        assert "bomb" not in kind or "unpacks to more than" in text or "cannot be read" in text, text
        assert " fix: " in text or "known: " in text, text
    assert time.monotonic() - began < 60
    assert not canary.exists()
    assert set(tmp_path.rglob("*")) == before


def test_the_command_says_it_in_one_line(tmp_path: Path) -> None:
    canary, path = tmp_path / "canary", tmp_path / "model.zip"
    path.write_bytes(HOSTILE["a policy of torch.save that runs code"](canary))
    done = CliRunner().invoke(app, ["train", "CartPole-v1", "--from", str(path)])
    assert done.exit_code == 2
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("RunError: ")
    assert "does not hold tensors alone" in line
    assert not canary.exists()


@pytest.mark.parametrize("kind", ["symbolic link", "fifo", "folder", "device"])
def test_what_is_no_plain_file_is_not_read(kind: str, tmp_path: Path) -> None:
    real, path = tmp_path / "real.zip", tmp_path / "model.zip"
    real.write_bytes(model())
    if kind == "symbolic link":
        path.symlink_to(real)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path("/dev/zero")
    with pytest.raises(AgileRLError, match=r"symbolic link|not a plain file|is a folder"):
        load(path, "CartPole-v1")


def test_pickles_and_names_with_paths_beside_the_tensors_are_left_where_they_are(tmp_path: Path) -> None:
    canary, path = tmp_path / "canary", tmp_path / "a" / "b" / "model.zip"
    path.parent.mkdir(parents=True)
    pickled = {":type:": "<class 'function'>", ":serialized:": pickle.dumps(Touch(canary)).hex()}
    data = {"gamma": 0.9, "exploration_schedule": pickled, "observation_space": pickled}
    more = {
        "../../evil.py": b"raise SystemExit",
        "/tmp/evil.py": b"",
        "policy.optimizer.pth": pickle.dumps(Touch(canary)),
    }
    path.write_bytes(model(data=data, **more))
    before = set(tmp_path.rglob("*"))
    agent = sb3.load(path, "CartPole-v1")
    assert agent.gamma == 0.9
    # each hidden unit is the sum of the observation, and both values are eight times that
    np.testing.assert_allclose(agent.actor(np.float32([[1, 2, 3, 4]])).detach(), [[80, 80]])
    assert set(tmp_path.rglob("*")) == before
    assert not canary.exists()


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    with path.open("wb") as file:
        file.truncate(files.MAX_FILE + 1)  # a sparse file: no disk
    with pytest.raises(AgileRLError, match=r"has \d+ bytes; at most \d+ are read"):
        load(path, "CartPole-v1")
