"""User-defined hooks of a run; they may stop it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from agilerl.core import foreign
from agilerl.errors import CallbackError, ConfigError, nearest, warn_once
from agilerl.telemetry.record import Birth, GenerationRecord

HOOKS = ("on_generation", "on_birth", "on_best", "on_end")


class Callback:
    """Base class of callbacks, whose hooks do nothing. Any object with one of the methods works too.

    A hook that returns False stops the run after the generation; its record names the hook. A hook that raises ends the
    run with a `CallbackError` that names it; the run is saved up to there and can be resumed.
    """

    def on_generation(self, record: GenerationRecord) -> bool | None:
        """After a generation has been evaluated, selected, mutated and saved."""

    def on_birth(self, birth: Birth) -> bool | None:
        """For every new member, founders first; before `on_generation` of the generation that created it."""

    def on_best(self, agent: foreign.Agent) -> bool | None:
        """Whenever there is a new best agent, with a copy of it that is not trained further."""

    def on_end(self, result: object) -> bool | None:
        """Once at the end of training, also after Ctrl-C, with the `EvolveResult`; not after an error."""


class Callbacks:
    """All callbacks of a run, called in order.

    Args:
        given: objects with some of the hooks, or functions, which are used as `on_generation`.

    Attributes:
        stopped_by: "<name>.<hook>" of the first hook that returned False; None until then.

    Raises:
        ConfigError: an object without hooks.
    """

    def __init__(self, given: Iterable[Any] = ()) -> None:
        self._hooks: dict[str, list[tuple[str, Any]]] = {name: [] for name in HOOKS}
        self.stopped_by: str | None = None
        for one in given:
            self._take(one)

    def _take(self, callback: object) -> None:
        hooks = [name for name in HOOKS if foreign.has_methods(callback, name)]
        name = foreign.name_of_function(callback, type(callback).__name__)
        others = [other for other in dir(callback) if not other.startswith("_") and other not in HOOKS]
        similar = {other: hook for other in others for hook in nearest(other, HOOKS, 1, 0.75)}
        if not hooks and not callable(callback):
            fix = f"a method {next(iter(similar.values()), HOOKS[0])}(self, ...)"
            raise ConfigError(f"callback {name} has none of the hooks {', '.join(HOOKS)}. fix: {fix}.")
        for method, hook in similar.items():
            if foreign.has_methods(callback, method):
                warn_once(f"{name}.{method}", f"no run calls {name}.{method}. fix: {hook}, if that is meant.")
        if not hooks:
            self._hooks["on_generation"].append((name, callback))
        for hook in hooks:
            self._hooks[hook].append((f"{name}.{hook}", foreign.method(callback, hook)))

    def generation(self, record: GenerationRecord) -> None:
        self.births(record.births)
        self._call("on_generation", record)

    def births(self, births: Sequence[Birth]) -> None:
        for birth in births:
            self._call("on_birth", birth)

    def best(self, agent: foreign.Agent) -> None:
        self._call("on_best", agent)

    def end(self, result: object) -> None:
        self._call("on_end", result)

    def _call(self, hook: str, what: object) -> None:
        for name, function in self._hooks[hook]:
            try:
                answer = function(what)
            except Exception as error:
                raise CallbackError(
                    f"callback {name} raised {type(error).__name__}: {error}. fix: mend it; a run with a directory "
                    "goes on from its last generation (agilerl.resume)."
                ) from error
            if answer is False and self.stopped_by is None:
                self.stopped_by = name
