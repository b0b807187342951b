"""Trackers get every generation at its environment steps, never a secret, and never stop the training."""

from __future__ import annotations

import json
import re
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import agilerl
from agilerl import errors
from agilerl.cli.main import app
from agilerl.cli.tracking import NAMES, chosen_tracker, with_tracker
from agilerl.errors import AgileRLWarning, ConfigError
from agilerl.runs.seed_group import SeedGroup
from agilerl.telemetry.mlflow_tracker import MAX_PARAM_LENGTH, MLflowSink, flat
from agilerl.telemetry.record import Birth, GenerationRecord, MemberRecord, RunPlan
from agilerl.telemetry.tracker_names import TRACKERS, tracker_name
from agilerl.telemetry.trackers import Background, Tracker, TrackioSink, WandbSink
from agilerl.training.manifest.launch import _tracker

PLAN = RunPlan("DQN", "CartPole-v1", 2, 4, 1000, 500, 7, "cpu", "fused", "cartpole", 1, notes=("a note",))
FOUNDERS = [Birth(0, None, 0, "founder")]
KEY = "canary-key-0123456789abcdef"
SMALL = {"training": {"evo_steps": 40, "eval_episodes": 1, "target_score": None, "confirm_episodes": 0}}


def record(generation: int, fitness: float) -> GenerationRecord:
    member = MemberRecord(0, 0, None, fitness, None, 500 * generation, 3, 0.25, "None", {"lr": 1e-3}, "[64] 64 [64]")
    steps = 500 * generation
    return GenerationRecord(generation, 2, (member,), steps, 1000, 2 * steps, 0, 3, 1.5)


GENERATIONS = [record(1, 20.0), record(2, 30.0)]


@pytest.fixture(autouse=True)
def fresh_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings of other tests are forgotten; packages report their use to nobody."""
    monkeypatch.setattr(errors, "_warned", set())
    monkeypatch.setenv("DO_NOT_TRACK", "1")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A folder of MLflow's store of files."""
    pytest.importorskip("mlflow")
    return (tmp_path / "mlruns").as_uri()


def runs_in(uri: str, project: str = "agilerl") -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(project)
    return [] if experiment is None else list(client.search_runs([experiment.experiment_id]))


def history(uri: str, run: Any, metric: str) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    return [(point.step, point.value) for point in MlflowClient(uri).get_metric_history(run.info.run_id, metric)]


def track(sink: Tracker, *generations: GenerationRecord) -> None:
    sink.start(PLAN, FOUNDERS)
    for each in generations or GENERATIONS:
        sink.generation(each)
    sink.close()


def test_mlflow_has_metrics_by_env_steps_params_tags_and_the_status(store: str) -> None:
    config = {"algorithm": {"lr": 1e-3, "hidden": [64, 64]}, "environment": {"kwargs": {}}}
    track(MLflowSink("project", config, tracking_uri=store, tags={"team": "blue"}, id="abc"))
    (run,) = runs_in(store, "project")
    assert history(store, run, "population/best_fitness") == [(500, 20.0), (1000, 30.0)]
    assert history(store, run, "lr/slot_0") == [(500, 1e-3), (1000, 1e-3)]
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "CartPole-v1-DQN-seed7"
    expected = {"algorithm.lr": "0.001", "algorithm.hidden": "[64, 64]", "environment.kwargs": "{}", "seed": "7"}
    assert {name: run.data.params[name] for name in expected} == expected
    assert "notes" not in run.data.params
    tags = {"agilerl.algo": "DQN", "agilerl.env_id": "CartPole-v1", "agilerl.seed": "7", "agilerl.id": "abc"}
    assert {name: run.data.tags[name] for name in tags} == tags
    assert run.data.tags["team"] == "blue"


@pytest.mark.parametrize(
    ("error", "status"),
    [(KeyboardInterrupt(), "KILLED"), (ValueError("a bug"), "FAILED"), (None, "FINISHED")],
)
def test_the_error_that_ends_the_training_is_the_status_and_one_that_is_older_is_not(
    store: str, error: BaseException | None, status: str
) -> None:
    sink = MLflowSink(tracking_uri=store)

    def train() -> None:
        sink.start(PLAN, FOUNDERS)
        try:
            if error is not None:
                raise error
        finally:
            sink.close()

    try:
        raise KeyError("of the caller, who trains while handling it")
    except KeyError:
        if error is None:
            train()
        else:
            with pytest.raises(type(error)):
                train()
    (run,) = runs_in(store)
    assert run.info.status == status


def test_a_continued_run_keeps_its_params_and_says_what_has_changed(store: str) -> None:
    for steps, generation in ((1000, 1), (2000, 2)):
        config = {"training": {"max_steps": steps, "pop_size": 4}, **({"late": 1} if steps == 2000 else {})}
        track(MLflowSink("agilerl", config, tracking_uri=store, id="abc"), GENERATIONS[generation - 1])
    track(MLflowSink(tracking_uri=store, id="other"), GENERATIONS[0])
    first, second = sorted(runs_in(store), key=lambda run: run.data.tags["agilerl.id"])
    assert history(store, first, "population/best_fitness") == [(500, 20.0), (1000, 30.0)]
    assert first.data.params["training.max_steps"] == "1000"
    assert first.data.tags["resumed.training.max_steps"] == "2000"
    assert "resumed.training.pop_size" not in first.data.tags
    assert first.data.params["late"] == "1"
    assert first.info.status == "FINISHED"
    assert history(store, second, "population/best_fitness") == [(500, 20.0)]


@pytest.mark.parametrize("id", ["it's", 'say "x"'])
def test_an_id_may_have_quotes_of_one_kind(id: str, store: str) -> None:
    for generation in (0, 1):
        track(MLflowSink(tracking_uri=store, id=id), GENERATIONS[generation])
    (run,) = runs_in(store)
    assert history(store, run, "population/best_fitness") == [(500, 20.0), (1000, 30.0)]


def test_an_id_with_both_kinds_of_quotes_is_refused() -> None:
    with pytest.raises(ConfigError, match="id must not have both ' and \""):
        MLflowSink(id="""it's "x\"""")


def test_more_params_than_one_request_takes_and_texts_above_the_limit_arrive(store: str) -> None:
    config = {**{f"p{number}": number for number in range(230)}, "long": "x" * (MAX_PARAM_LENGTH + 1), "odd §": 1}
    track(MLflowSink("agilerl", config, tracking_uri=store))
    (run,) = runs_in(store)
    assert {run.data.params[f"p{number}"] for number in range(230)} == {str(number) for number in range(230)}
    assert run.data.params["long"] == "x" * (MAX_PARAM_LENGTH - 3) + "..."
    assert run.data.params["odd _"] == "1"
    assert dict(flat({"a": {"b": {"c": None}}, "d": True})) == {"a.b.c": "null", "d": "true"}


@pytest.mark.thorough  # the database's tables take seconds
def test_a_run_in_a_database_has_the_fitness_of_every_generation(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    run = agilerl.train(
        "CartPole-v1", config=SMALL, population=2, steps=120, seed=1, out=None, verbose=False,
        sinks=[MLflowSink(tracking_uri=uri)],
    )  # fmt: skip
    (tracked,) = runs_in(uri)
    expected = [(40 * (number + 1), max(row)) for number, row in enumerate(run.history)]
    assert history(uri, tracked, "population/best_fitness") == expected
    assert len(expected) == 3
    assert tracked.info.status == "FINISHED"


def command(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_trains_with_a_tracker_and_resumes_with_the_same(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    settings = [f"training.{key}={json.dumps(value)}" for key, value in SMALL["training"].items()]
    sets = [word for setting in [*settings, "learning_delay=8"] for word in ("--set", setting)]
    out = str(tmp_path / "runs")
    common = ["--steps", "80", "--population", "2", "-q", "--test-episodes", "0", "--out", out]
    command("train", "CartPole-v1", "--track", "mlflow", *common, *sets)
    (path,) = (tmp_path / "runs" / "CartPole-v1").iterdir()
    facts = json.loads((path / "run.json").read_text())
    (run,) = runs_in(store)
    assert facts["tracker"] == "mlflow"
    assert facts["track"] == run.data.tags["agilerl.id"]
    assert run.data.params["algorithm.name"] == "DQN"
    command("resume", str(path), "--steps", "120", "-q", "--test-episodes", "0")
    (again,) = runs_in(store)
    assert [step for step, _ in history(store, again, "population/best_fitness")] == [40, 80, 120]
    assert again.data.tags["resumed.training.max_steps"] == "120"
    command("resume", str(path), "--steps", "160", "--no-track", "-q", "--test-episodes", "0")
    assert [step for step, _ in history(store, again, "population/best_fitness")] == [40, 80, 120]


@pytest.mark.parametrize("kind", [MLflowSink, WandbSink, TrackioSink])
def test_a_missing_package_is_one_warning_that_names_the_extra(
    kind: type[Tracker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, kind.name, None)
    with pytest.warns(AgileRLWarning) as caught:
        track(kind())
    (warning,) = caught
    assert str(warning.message) == (
        f'{kind.name} is not installed. fix: pip install "agilerl[{kind.name}]" The training goes on without it.'
    )


def test_a_broken_installation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'zlib'", name="zlib")

    monkeypatch.setattr("agilerl.telemetry.trackers.import_module", broken)
    with pytest.warns(AgileRLWarning, match=r"mlflow failed \(ModuleNotFoundError: No module named 'zlib'\)"):
        track(MLflowSink())


def test_training_goes_on_without_a_server_that_nobody_runs(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    import socket

    with socket.socket() as server:  # bound, and listens to nobody
        server.bind(("127.0.0.1", 0))
        uri = f"http://user:{KEY}@127.0.0.1:{server.getsockname()[1]}"
        sink = MLflowSink(tracking_uri=uri, patience_s=0.2)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", AgileRLWarning)
            run = agilerl.train(
                "CartPole-v1", config=SMALL, population=1, steps=80, seed=1, out=tmp_path, verbose=False, sinks=[sink]
            )
    assert run.result["generations"] == 2
    messages = [str(each.message) for each in caught if issubclass(each.category, AgileRLWarning)]
    (text,) = [message for message in messages if "no update" not in message]
    assert text.startswith("mlflow has not answered in 0.2 seconds: nothing was sent. fix: ")
    assert KEY not in text + repr(vars(sink))


class FakeMlflow(types.ModuleType):
    """Fails as a server does that repeats what it was sent."""

    def get_tracking_uri(self) -> str:
        return f"https://user:{KEY}@example.invalid/mlflow"

    def MlflowClient(self, tracking_uri: str) -> Any:
        raise RuntimeError(f"401 for {tracking_uri}")

    entities = types.SimpleNamespace()


def test_a_password_in_the_address_is_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", FakeMlflow("mlflow"))
    with pytest.warns(AgileRLWarning) as caught:
        track(MLflowSink())
    (warning,) = caught
    assert "mlflow failed (RuntimeError: 401 for https://user:***@example.invalid/mlflow)" in str(warning.message)


def test_secrets_reach_no_file_of_the_store(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", KEY)
    plan = replace(PLAN, env_id=f"Env-{KEY}")
    sink = MLflowSink(
        config={"WANDB_API_KEY": "abcdef-of-another", "url": f"http://{KEY}/x"}, tracking_uri=store, tags={"who": KEY}
    )
    sink.start(plan, FOUNDERS)
    sink.close()
    (run,) = runs_in(store)
    assert run.data.params["WANDB_API_KEY"] == "***"
    assert run.data.params["url"] == "http://***/x"
    stored = "\n".join(str(path) + path.read_text() for path in (tmp_path / "mlruns").rglob("*") if path.is_file())
    assert "Env-***" in stored
    assert KEY not in stored
    assert "abcdef-of-another" not in stored


class FakeTracker(types.ModuleType):
    """Calls of W&B and of Trackio, in order."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def init(self, **options: Any) -> FakeTracker:
        self.calls.append(("init", options))
        return self

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.calls.append(("log", {"best": numbers["population/best_fitness"], "step": step}))

    def finish(self, **options: Any) -> None:
        self.calls.append(("finish", options))


MAKE: list[tuple[Callable[[], Tracker], dict[str, Any]]] = [
    (
        lambda: TrackioSink.for_run({"lr": 1}, "abc"),
        {
            "name": "CartPole-v1-DQN-seed7-abc", "resume": "allow", "embed": False, "auto_log_cpu": False,
            "auto_log_gpu": False,
        },
    ),
    (
        lambda: TrackioSink(config={"lr": 1}, space_id="user/space", name="mine"),
        {"name": "mine", "space_id": "user/space", "embed": False, "auto_log_cpu": False, "auto_log_gpu": False},
    ),
    (
        lambda: WandbSink.for_run({"lr": 1}, "abc"),
        {"name": "CartPole-v1-DQN-seed7", "id": "abc", "resume": "allow"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "options"), MAKE)
def test_calls_of_wandb_and_trackio(
    make: Callable[[], Tracker], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make()
    fake = FakeTracker(sink.name)
    monkeypatch.setitem(sys.modules, sink.name, fake)
    track(sink)
    (_, begun), *others = fake.calls
    config = begun.pop("config")
    assert begun == {"project": "agilerl", **options}
    assert (config["lr"], config["algo"], config["seed"]) == (1, "DQN", 7)
    assert others == [
        ("log", {"best": 20.0, "step": 500}), ("log", {"best": 30.0, "step": 1000}), ("finish", {})
    ]  # fmt: skip


def test_wandb_is_told_of_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTracker("wandb")
    monkeypatch.setitem(sys.modules, "wandb", fake)
    sink = WandbSink()
    sink.start(PLAN, FOUNDERS)
    try:
        raise ValueError("a bug")
    except ValueError:
        sink.close()
    assert fake.calls[-1] == ("finish", {"exit_code": 1})


class FailingLog(FakeTracker):
    """Fails at the first generation, as after the loss of a connection."""

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.calls.append(("log", {}))
        raise ConnectionError("lost")


def test_a_tracker_that_fails_ends_its_run_and_warns_for_every_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that stays open would take the generations of the next training of this process."""
    fake = FailingLog("wandb")
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with pytest.warns(AgileRLWarning, match=r"wandb failed \(ConnectionError: lost\)"):
        track(WandbSink())
    assert [name for name, _ in fake.calls] == ["init", "log", "finish"]
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.warns(AgileRLWarning, match="wandb is not installed"):
        track(WandbSink())


def test_the_end_of_a_run_is_not_dropped_with_generations() -> None:
    """A queue of one: while the first call is made, one waits and the third is dropped; the last call is made."""
    calls, begun, go = list[str](), threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        go.wait(20)
        calls.append("first")

    background = Background(pytest.fail, capacity=1)
    background.call(first)
    assert begun.wait(20)
    for name in ("second", "third"):
        background.call(lambda name=name: calls.append(name))  # type: ignore[misc]
    assert not background.close(0.01, lambda: calls.append("last")), "the queue is full"
    go.set()
    background._thread.join(20)
    assert (calls, background.dropped) == (["first", "last"], 2), "what waits is given up, the end is not"


@pytest.fixture
def trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Trackio with a folder of its own, which it reads when it is imported."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    for name in [name for name in sys.modules if name.split(".")[0] == "trackio"]:
        monkeypatch.delitem(sys.modules, name)
    yield pytest.importorskip("trackio")
    for name in [name for name in sys.modules if name.split(".")[0] == "trackio"]:
        sys.modules.pop(name)


def test_trackio_on_this_machine_has_every_generation_of_a_run_that_was_resumed(trackio: Any, tmp_path: Path) -> None:
    from trackio.sqlite_storage import SQLiteStorage

    for each in GENERATIONS:
        track(TrackioSink.for_run({"lr": 1e-3, "API_KEY": KEY}, "abc"), each)
    (run,) = trackio.Api().runs("agilerl")
    assert run.name == "CartPole-v1-DQN-seed7-abc"
    assert (run.config["lr"], run.config["env_id"], run.config["API_KEY"]) == (1e-3, "CartPole-v1", "***")
    logs = SQLiteStorage.get_logs("agilerl", run.name)
    assert [(log["step"], log["population/best_fitness"]) for log in logs] == [(500, 20.0), (1000, 30.0)]
    assert list((tmp_path / "trackio").glob("*.db"))


# -- the option -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["CartPole-v1", "--track"], ["CartPole-v1", "--track=wandb"]),
        (["--track", "CartPole-v1"], ["--track=wandb", "CartPole-v1"]),
        (["--track", "mlflow", "CartPole-v1"], ["--track=mlflow", "CartPole-v1"]),
        (["--track", "mlfow"], ["--track=mlfow"]),
        (["--track", "--quiet"], ["--track=wandb", "--quiet"]),
        (["--track=trackio"], ["--track=trackio"]),
        (["--", "--track"], ["--", "--track"]),
    ],
)
def test_track_takes_a_name_or_none(words: list[str], expected: list[str]) -> None:
    assert with_tracker(words) == expected


def test_names_of_the_command_are_those_of_the_package() -> None:
    assert list(TRACKERS) == list(NAMES)
    assert (tracker_name(True), tracker_name(False), tracker_name("mlflow")) == ("wandb", "", "mlflow")


def test_an_unknown_tracker_is_an_error_before_training(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["train", "CartPole-v1", "--track", "mlfow", "--out", str(tmp_path / "runs")])
    assert done.exit_code == 2
    assert "unknown tracker 'mlfow'. Did you mean 'mlflow'?" in done.output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", [["train", "CartPole-v1"], ["resume", "nowhere"]])
def test_a_word_that_is_like_no_tracker_is_an_unknown_one(words: list[str]) -> None:
    done = CliRunner().invoke(app, [*words, "--track", "nope"])
    assert done.exit_code == 2
    text = " ".join(re.sub("[│╭╰─╮╯]", " ", done.output).split())
    assert "unknown tracker 'nope'. (known: mlflow, trackio, wandb) fix: a known one." in text
    other = CliRunner().invoke(app, ["train", "--track", "CartPole-v1", "nope"])
    assert re.search(r"unexpected extra argument\S* \(nope\)", other.output)


@pytest.mark.parametrize(
    ("start", "asked", "expected"),
    [
        ({}, None, ""),
        ({"track": "abc"}, None, "wandb"),  # as runs of earlier versions have it
        ({"track": "abc", "tracker": "mlflow"}, None, "mlflow"),
        ({"track": "abc", "tracker": "mlflow"}, True, "mlflow"),
        ({"track": "abc", "tracker": "mlflow"}, "wandb", "wandb"),
        ({"track": "abc", "tracker": "mlflow"}, "", ""),
        ({"track": "abc", "tracker": "mlflow"}, False, ""),
        ({}, True, "wandb"),
    ],
)
def test_a_resumed_run_follows_its_record(start: dict[str, Any], asked: Any, expected: str) -> None:
    assert _tracker(start, asked) == expected


def test_resuming_with_and_without_a_tracker_is_an_error() -> None:
    assert (chosen_tracker(None, False), chosen_tracker("mlflow", False), chosen_tracker(None, True)) == (
        None, "mlflow", ""
    )  # fmt: skip
    with pytest.raises(ConfigError, match="exclude each other"):
        chosen_tracker("mlflow", True)


@pytest.mark.parametrize("tracker", [True, False, "mlflow"])
def test_seeds_side_by_side_record_their_tracker(tracker: bool | str, tmp_path: Path) -> None:
    from agilerl.config import preset_for

    settings = {"device": "cpu", "evolution": True, "tensorboard": False, "imports": [], "test_episodes": 0}
    group = SeedGroup.create(preset_for("CartPole-v1"), [0, 1], tmp_path, track=tracker, **settings)
    assert SeedGroup.open(group.path).settings["track"] == tracker
