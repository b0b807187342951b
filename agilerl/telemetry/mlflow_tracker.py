"""MLflow as a tracker: a run of its client interface, without MLflow's global state."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from agilerl.core.redaction import Secret, without_secrets
from agilerl.errors import ConfigError
from agilerl.telemetry.trackers import CAPACITY, PATIENCE_S, Tracker

MAX_METRICS, MAX_PARAMS = 1000, 100  # of one request
MAX_PARAM_LENGTH = 6000  # characters
ALGORITHM, ENVIRONMENT, SEED, ID = "agilerl.algo", "agilerl.env_id", "agilerl.seed", "agilerl.id"
LEFT_OUT = ("notes", "extra")  # of the plan: text and tables, in run.json
LOCAL_PATIENCE_S = 60.0  # a new database makes its tables first, which takes seconds, and does not hang as a server may


class MLflowSink(Tracker):
    """MLflow; see `Tracker`. Scalars are metrics, settings are params with dotted names.

    The run ends as FINISHED, as KILLED after Ctrl-C or SIGTERM, and as FAILED after an error. A continued run keeps the
    params it has; a setting that has changed since is the tag `resumed.<name>`.

    Args:
        project: the experiment. config: settings stored as params. tags: further tags.
        tracking_uri: a server, or a store such as "sqlite:///mlflow.db"; None follows MLFLOW_TRACKING_URI. A password
            in it appears in no message.
        id: a tag of the run; a run of the experiment that has it is continued.
        capacity, patience_s: see `Tracker`; None is `PATIENCE_S` for a server and `LOCAL_PATIENCE_S` for other stores.

    Raises:
        ConfigError: an id with both kinds of quotes, which no search of MLflow can find.
    """

    name = "mlflow"
    fix = "check MLFLOW_TRACKING_URI and that its server runs."

    def __init__(
        self,
        project: str = "agilerl",
        config: Mapping[str, Any] | None = None,
        *,
        tracking_uri: str | None = None,
        tags: Mapping[str, str] | None = None,
        id: str = "",
        capacity: int = CAPACITY,
        patience_s: float | None = None,
    ) -> None:
        super().__init__(
            project, config, capacity=capacity, patience_s=PATIENCE_S if patience_s is None else patience_s
        )
        if "'" in id and '"' in id:
            raise ConfigError(f"id must not have both ' and \"; got {id}. fix: another id.")
        self._is_patient = patience_s is None
        self._uri = None if tracking_uri is None else Secret(tracking_uri)
        self._tags, self._id = without_secrets(dict(tags or {})), id
        self._client: Any = None
        self._entities: Any = None
        self._run_id = ""

    @classmethod
    def for_run(cls, config: Mapping[str, Any], id: str) -> MLflowSink:
        return cls(config=config, id=id)

    def _open(self, package: Any, name: str, facts: dict[str, Any]) -> None:
        uri = package.get_tracking_uri() if self._uri is None else self._uri.reveal()
        if self._is_patient and not uri.startswith("http"):
            self._patience_s = LOCAL_PATIENCE_S
        password = urlsplit(uri).password
        self._secrets = () if not password else (Secret(password),)
        self._client, self._entities = package.MlflowClient(tracking_uri=uri), package.entities
        experiment = self._client.get_experiment_by_name(self._project)
        where = self._client.create_experiment(self._project) if experiment is None else experiment.experiment_id
        tags = {ALGORITHM: str(facts["algo"]), ENVIRONMENT: str(facts["env_id"]), SEED: str(facts["seed"])}
        tags |= {**({ID: self._id} if self._id else {}), **self._tags}
        params = dict(flat({key: value for key, value in facts.items() if key not in LEFT_OUT}))
        quote = '"' if "'" in self._id else "'"  # its filters have no escapes
        before = self._client.search_runs([where], f"tags.`{ID}` = {quote}{self._id}{quote}") if self._id else []
        if before:
            self._run_id, params_before = before[0].info.run_id, before[0].data.params
            self._client.update_run(self._run_id, status="RUNNING")
            changed = {k: v for k, v in params.items() if params_before.get(k, v) != v}
            tags |= {f"resumed.{key}": value for key, value in changed.items()}
            params = {key: value for key, value in params.items() if key not in params_before}
        else:
            self._run_id = self._client.create_run(where, tags=tags, run_name=name).info.run_id
        self._send(params=[self._entities.Param(key, value) for key, value in params.items()])
        self._send(tags=[self._entities.RunTag(key, value) for key, value in tags.items()])

    def _log(self, numbers: dict[str, float], env_steps: int) -> None:
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(_allowed(name), value, now, env_steps) for name, value in numbers.items()]
        self._send(metrics=metrics)

    def _send(self, metrics: Sequence[Any] = (), params: Sequence[Any] = (), tags: Sequence[Any] = ()) -> None:
        """Send in as many requests as the limits of the server ask for."""
        for start in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + MAX_METRICS])
        for start in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(self._run_id, params=params[start : start + MAX_PARAMS])
        for start in range(0, len(tags), MAX_PARAMS):
            self._client.log_batch(self._run_id, tags=tags[start : start + MAX_PARAMS])

    def _finish(self, error: BaseException | None) -> None:
        is_stopped = isinstance(error, KeyboardInterrupt)
        self._client.set_terminated(self._run_id, "FINISHED" if error is None else "KILLED" if is_stopped else "FAILED")


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted name, text) of every setting; lists are JSON, and texts above MLflow's limit are cut."""
    for name, value in settings.items():
        key = _allowed(f"{prefix}{name}")
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            yield key, text if len(text) <= MAX_PARAM_LENGTH else f"{text[: MAX_PARAM_LENGTH - 3]}..."


def _allowed(name: str) -> str:
    """The name with `_` in place of characters that MLflow rejects."""
    return re.sub(r"[^\w\-./: ]", "_", name, flags=re.ASCII)
