"""Mistakes with workers on Ray, named without Ray: versions, addresses, tokens, and what a run records."""

from __future__ import annotations

import platform
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

import agilerl
from agilerl.cli import app
from agilerl.errors import AgileRLWarning, ConfigError
from agilerl.training.manifest.worker_settings import ALONE, Workers, resumed_workers, workers_of
from agilerl.workers import cluster, connection
from agilerl.workers.cluster import PACKAGES, actor_class, check_processor, check_versions, processor
from agilerl.workers.connection import _check_secure, asks_for_token, check_installed, connect

ANSWERS = {"agilerl": agilerl.__version__, **{name: metadata.version(name) for name in PACKAGES}}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretends that this version of Ray is installed; None for none."""
    version = metadata.version

    def of(ray: str | None) -> None:
        def answer(name: str) -> str:
            if name != "ray":
                return version(name)
            if ray is None:
                raise metadata.PackageNotFoundError(name)
            return ray

        monkeypatch.setattr(metadata, "version", answer)

    of("2.60.0")
    return of


def test_a_missing_ray_names_the_extra(installed: Any) -> None:
    installed(None)
    with pytest.raises(
        ConfigError, match=r'need Ray 2\.52 or newer, which is missing\. fix: pip install "agilerl\[ray\]'
    ):
        agilerl.train("CartPole-v1", workers=2, ray="local", out=None)


def test_an_old_ray_is_named_with_its_version(installed: Any) -> None:
    installed("2.51.2")
    with pytest.raises(ConfigError, match=r"need Ray 2\.52 or newer; got 2\.51\.2\. fix: pip install"):
        check_installed()


@pytest.mark.parametrize("ray", ["auto", "local", "head:6379"])
def test_ray_needs_workers(ray: str, installed: Any) -> None:
    with pytest.raises(ConfigError, match=rf"ray='{ray}' is for workers, .* fix: workers='auto'"):
        workers_of(1, ray)
    assert workers_of("auto", ray, True) == Workers("auto", ray, True)
    assert workers_of(3, ray).settings() == {"workers": 3, "ray": ray}


@pytest.mark.parametrize("ray", [7, "", True])
def test_another_kind_of_address_is_named(ray: Any) -> None:
    with pytest.raises(ConfigError, match=r"ray must be 'local', 'auto' or an address HOST:PORT; got"):
        workers_of(2, ray)


def test_without_ray_nothing_of_it_is_recorded() -> None:
    assert workers_of(1, "none") == ALONE
    assert workers_of(2).settings() == {"workers": 2}
    assert ALONE.settings() == {}


def test_a_resumed_run_follows_its_record_but_for_addresses(installed: Any) -> None:
    run = Path("runs/a b")

    def resumed(recorded: str, workers: Any = None, ray: str | None = None) -> Workers:
        return resumed_workers({"workers": "auto", "ray": recorded}, run, workers, ray, False)

    assert resumed("auto") == Workers("auto", "auto")
    assert resumed("local", 3) == Workers(3, "local")
    assert resumed("head:6379", 1) == ALONE
    assert resumed("head:6379", 3, "none") == Workers(3)
    assert resumed("head:6379", None, "head:6379") == Workers("auto", "head:6379")
    with pytest.raises(ConfigError, match=r"fix: agilerl resume 'runs/a b' --ray head:6379, or --ray none"):
        resumed("head:6379")
    assert resumed_workers({"workers": 2}, run, None, None, False) == Workers(2)
    assert resumed_workers({}, run, None, None, False) == ALONE


def test_seeds_side_by_side_are_not_on_ray(tmp_path: Path) -> None:
    arguments = ["train", "CartPole-v1", "--seeds", "0-1", "--ray", "auto", "--out", str(tmp_path)]
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code != 0
    assert "--ray is for the workers of one run" in ended.output
    assert not list(tmp_path.iterdir())


def test_an_address_of_ray_client_is_named(installed: Any) -> None:
    with pytest.raises(ConfigError, match=r"ray://head:10001 is an address of Ray Client.*--ray auto"):
        connect("ray://head:10001", 1)


def test_an_address_without_a_listener_is_named(installed: Any) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    with pytest.raises(ConfigError, match=rf"no Ray cluster answers at '127\.0\.0\.1:{port}': .*refused"):
        connect(f"127.0.0.1:{port}", 1)
    with pytest.raises(ConfigError, match=r"no Ray cluster answers at 'head'"):
        connect("head", 1)


@pytest.mark.parametrize(
    ("code", "text", "asks"),
    [(0, "", False), (1, "Error: RPC error: InvalidAuthToken: missing", True), (1, "ValueError: nonsense", None)],
)
def test_a_client_without_a_token_finds_out_whether_one_is_needed(
    code: int, text: str, asks: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(command: list[str], env: dict[str, str], **more: Any) -> subprocess.CompletedProcess[str]:
        assert command[1:] == ["-P", "-m", "ray.scripts.scripts", "health-check"]
        assert env["RAY_AUTH_MODE"] == "disabled"
        return subprocess.CompletedProcess(command, code, "", text)

    monkeypatch.setattr(connection.subprocess, "run", answer)
    if asks is None:
        with pytest.raises(ConfigError, match="no Ray cluster answers at 'auto': ValueError: nonsense"):
            asks_for_token("auto")
    else:
        assert asks_for_token("auto") is asks


def test_a_cluster_elsewhere_without_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.77:6379 asks for no token.*allow_insecure_ray=True"):
        _check_secure("192.0.2.77:6379", False)
    _check_secure("192.0.2.77:6379", True)
    _check_secure("127.0.0.1:6379", False)
    _check_secure("[::1]:6379", False)


def test_a_connection_of_the_user_is_taken_and_stays(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("ray")
    module.is_initialized = lambda: True
    monkeypatch.setitem(sys.modules, "ray", module)
    assert connect("auto", 1) == connection.Cluster(module, is_ours=False)


def facts(**versions: str) -> dict[str, Any]:
    here = {"Python": platform.python_version(), **ANSWERS}
    return {"host": "node-7", "versions": here | versions}


def test_the_versions_of_a_worker_are_compared() -> None:
    check_versions(facts())
    with pytest.raises(ConfigError, match=r"on node-7, lacks the package agilerl\. fix: `pip install agilerl=="):
        check_versions(facts(agilerl=""))
    with pytest.raises(ConfigError, match=r"on node-7, has agilerl 0\.0\.9 \(here .*\), Python 2\.7\.1 \(here 3"):
        check_versions(facts(agilerl="0.0.9", Python="2.7.1"))
    with pytest.raises(ConfigError, match=r"has torch none \(here .*fix: the same versions on all nodes"):
        check_versions(facts(torch=""))


def test_an_actor_reports_versions_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = actor_class()()
    there, _ = worker.do("versions", ["agilerl", *PACKAGES])
    assert there["versions"] == facts()["versions"]
    monkeypatch.setitem(sys.modules, "agilerl", None)
    assert worker.do("versions", ["agilerl", "no-such-package"])[0]["versions"]["agilerl"] == ""


def test_other_processors_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    here = processor()
    check_processor("node-7", here)
    with pytest.raises(ConfigError, match=r"lacks the kernels in C that .* has"):
        check_processor("node-7", {**here, "kernels": not here["kernels"]})
    with pytest.warns(AgileRLWarning, match=r"torch uses NEON on node-7"):
        check_processor("node-7", {**here, "vectors": "NEON"})


def test_gpus_are_shared_where_there_are_fewer_than_actors() -> None:
    assert [cluster._share_of_gpu(2, count) for count in (1, 2, 3, 5)] == [1.0, 1.0, 0.5, 1 / 3]
    with pytest.raises(ConfigError, match=r"no GPU\. fix: device='cpu'"):
        cluster._share_of_gpu(0, 1)
