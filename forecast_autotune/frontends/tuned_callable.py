"""What `variants` and the functions of `load_inline` share: an object that is called in the place of a function."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from ..core.decision import Decision
from ..core.signal_handlers import raised_by_signal_handler
from ..core.user_warnings import warn_user
from ..core.workload import Program, Work
from ..errors import InvalidInputError, TuningWarning
from ..measure.observers import unpack_hook, unrecorded
from ..measure.process_state import is_only_thread
from ..measure.state import tensors_reached
from ..store.explanation.explanation import Explanation
from .call_state import CallState, make_state_function, modules_of_call, state_without_data
from .call_tensors import (
    FX_TRACES,
    UNINITIALIZED,
    hold_no_data,
    is_fx_tracing,
    labelled_tensors,
    versions_of_tensors,
    why_unmeasured,
    why_untuned,
)
from .deciding import untraced
from .dispatch import Dispatcher, FrontDoor
from .key_table import Entry
from .keys import NoKeyError, ProxyError, as_names, key_as_json, make_key_function, without_nan
from .learnable_callable import current_stream
from .online.learning import Learning
from .reached import ReachedByCalls
from .repeated_calls import RepeatedCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call to decide for.

    Attributes:
        values: all its arguments in one row, defaults included.
        args, kwargs: the arguments as they are handed on.
        unmeasured: why it must not be measured, where its arguments do not show that; else empty.
    """

    state: CallState
    values: tuple[Any, ...]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    unmeasured: str = ""

    @property
    def why_unmeasured(self) -> str:
        """Why the call must be neither timed nor run twice; empty if it may."""
        return self.unmeasured or why_unmeasured(self.values)


_Tuned = TypeVar("_Tuned", bound="TunedCallable")


class CallableDoor(Generic[_Tuned]):
    """What the front doors of tuned callables share; see `FrontDoor`. A subclass says what runs and how it is tuned."""

    def __init__(self, tuned: _Tuned) -> None:
        self._tuned = tuned

    @property
    def name(self) -> str:
        """The callable in warnings."""
        return self._tuned.full_name

    def why_unmeasured(self, call: Call) -> str:
        """See `FrontDoor`."""
        if why := call.why_unmeasured:
            return why
        return "" if self._tuned.is_initialized(call) else UNINITIALIZED

    def forget_shortcuts(self) -> None:
        """A callable keeps no shortcuts: each call looks its key up."""


_NOTHING = ReachedByCalls()


class TunedCallable:
    """A function that is tuned: finds the decision for each call's key, and makes the call by its launcher's `call`.

    Args:
        door: how a missing decision is made.
        name: within the joint space of another tuner.
        full_name: in messages.
        key: as the user gave it.
        names: of the arguments, as far as they are known.
        options: of the `Dispatcher`.
    """

    callables: Sequence[Any] = ()
    """The Python callables it chooses among; empty where it chooses among others."""

    program: Program
    __name__: str

    def __init__(
        self, door: FrontDoor, *, name: str, full_name: str, key: Any, names: Sequence[str] | None, **options: Any
    ) -> None:
        from torch._C import _is_tracing

        self.dispatcher = Dispatcher(door, **options)
        self.name, self.full_name = name, full_name
        self._door, self.names = door, names
        self._key = make_key_function(key, names, name)
        self._key_names: tuple[str, ...] | None = None if callable(key) else as_names(key)
        self._reached = ReachedByCalls(self.callables)
        self._state = make_state_function(self._reached)
        self._find = self.dispatcher.table.get
        self._repeated = RepeatedCalls(self.dispatcher.table)
        self._kept = self._repeated.kept
        self._is_traced = _is_tracing  # by torch.jit.trace
        self._state_refs: list[weakref.ref[Any]] | None = None
        self._untuned_noted = False

    @property
    def tuned(self) -> Any:
        """The object that tunes it: itself."""
        return self

    def key_as_json(self, values: Sequence[Any]) -> dict[str, object]:
        """The key of a call for the store.

        Raises:
            InvalidInputError: what a callable `key=` returned has no JSON form.
            NoKeyError: an argument has none.
        """
        return key_as_json(self._key(*values), values, self.names, self._key_names)

    def is_initialized(self, call: Call) -> bool:
        """Whether all weights that a call reaches have their shapes: those of a lazy module not before its first call."""
        return self._reached.is_initialized(modules_of_call(call.values))

    @property
    def decisions(self) -> dict[Any, Decision]:
        """From key to its decision: the last 64 that this process made or recalled."""
        return self.dispatcher.decisions

    def explain(self, key: Any = None) -> Explanation:
        """Why a key runs what it runs: what `forecast-autotune show` prints, to print, for a notebook, or `.as_json()`.

        Args:
            key: one of `decisions`; None for the one decided last.
        Raises:
            InvalidInputError: nothing is decided for it in this process.
        """
        return self.dispatcher.explain(key)

    def state_as_json(self, call: Call) -> dict[str, object]:
        """See `CallState.as_json`."""
        labels = list(labelled_tensors(call.values, self.names or ()))
        return call.state.as_json(labels, *self._reached.names(modules_of_call(call.values)))

    def _make_call(self, values: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call under the decision for its key. A hit makes the key, looks it up and calls."""
        if self._is_traced():
            return self._make_traced_call(values, args, kwargs)
        try:
            key = (self._state(values), self._key(*values))
            entry = self._find(key)
        except Exception as err:
            key, entry = self._key_without_state(values, err), None  # type: ignore[assignment]
        if entry is None or entry.provisional is not None or entry.fallback is not None or self._kept:
            return self._miss(key, values, args, kwargs)
        return entry.launcher.call(*args, **kwargs)

    def _miss(self, key: Any, values: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if key is None or key[0] is None:  # under a transform
            return self._default(values, args, kwargs).call(*args, **kwargs)
        call = Call(state=CallState(*key[0]), values=values, args=args, kwargs=kwargs)
        entry = self.dispatcher.table.get(key)
        if entry is None:
            key = without_nan(key)
            entry = self.dispatcher.table.get(key)
        if (entry is None or entry.provisional is not None) and is_fx_tracing():
            self.note_untuned(FX_TRACES)
            return self._default(values, args, kwargs).call(*args, **kwargs)
        if (hook := unpack_hook()) is not None:
            entry = self._repeated.entry(key, hook, partial(self._decided, key, call))
        else:
            if self._kept:
                self._repeated.forget()
            if entry is None or (entry.learning is None and entry.provisional is not None):
                entry = self.dispatcher.entry(key, call)
        if (learning := entry.learning) is not None:
            return self._call_in_turn(key, entry, learning, call)
        del call
        return self.dispatcher.run(key, entry, args, kwargs)

    def _make_traced_call(self, values: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call that `torch.jit.trace` records, under the decision for its key."""
        with unrecorded():
            try:
                key: Any = without_nan((self._state(values), self._key(*values)))
                hash(key)
            except Exception as err:
                key = self._key_without_state(values, err)
            if key is None or key[0] is None:
                entry = Entry(launcher=self._default(values, args, kwargs), awaits_measuring=True)
            else:
                entry = self._decided(key, Call(state=CallState(*key[0]), values=values, args=args, kwargs=kwargs))
        return self.dispatcher.run(key, entry, args, kwargs)

    def _default(self, values: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The launcher of a call without a key."""
        call = Call(state=state_without_data((), _NOTHING), values=values, args=args, kwargs=kwargs)
        return untraced(self._door.default)(call)

    def _decided(self, key: Any, call: Call) -> Entry:
        entry = self.dispatcher.entry(key, call)
        if entry.learning is not None and entry.learning.calls.over:
            self.dispatcher.settle(entry)
        return entry

    def _call_in_turn(self, key: Any, entry: Entry, learning: Learning, call: Call) -> Any:
        """Make a call of a key that is being learned: under the best known config, or a candidate that is tried."""
        if learning.calls.over:
            self.dispatcher.settle(entry)
            return self.dispatcher.run(key, entry, call.args, call.kwargs)
        turn, launcher = learning.choose(
            call,
            entry.launcher,
            may_teach=lambda: learning.calls.wanted and not call.why_unmeasured,
            stream=lambda: current_stream(call.state.device_name),
        )
        try:
            result = learning.run(
                turn,
                launcher,
                lambda runs: runs.call(*call.args, **call.kwargs),
                lambda: self._watch(call),
            )
        except Exception as err:
            of_candidate = turn is not None and turn.trial is not None
            if of_candidate or entry.fallback is None or raised_by_signal_handler(err):
                raise
            result = entry.fallback[0].call(*call.args, **call.kwargs)  # where this raises too, it is the call
            learning.calls.end()
            self.dispatcher.settle(entry)
            self.dispatcher.fall_back(key, entry, err)
            return result
        entry.fallback = None
        return result

    def _watch(self, call: Call) -> Callable[[], bool]:
        """What tells whether a tensor that a call reaches has been written to since; state only where nobody else writes."""
        tensors = list(tensors_reached(call.values).values())
        if is_only_thread():
            tensors += self._state_tensors()
        before = versions_of_tensors(tensors)
        return lambda: versions_of_tensors(tensors) != before

    def _state_tensors(self) -> list[Any]:
        """The tensors that its callables reach, looked for once: a large model takes milliseconds."""
        if self._state_refs is None:
            self._state_refs = [weakref.ref(tensor) for tensor in tensors_reached(self.callables).values()]
        return [tensor for ref in self._state_refs if (tensor := ref()) is not None]

    def _key_without_state(self, values: tuple[Any, ...], err: Exception) -> tuple[Any, Any] | None:
        """The key of a call whose tensors have no addresses, such as fake ones; None where there can be none.

        Raises:
            InvalidInputError: what a callable `key=` returned cannot be looked up.
            Exception: what it raised, or a handler of a signal.
        """
        if not isinstance(err, NoKeyError) and raised_by_signal_handler(err):
            raise err
        if isinstance(err, ProxyError) or is_fx_tracing():
            self.note_untuned(FX_TRACES)
            return None
        if hold_no_data(values):
            try:
                key = (state_without_data(values, self._reached), self._key(*values))
                hash(key)
                return key
            except (NoKeyError, TypeError):  # sizes are symbols
                return None
        if self._key_names is None:
            own = self._key(*values)
            try:
                hash(own)
            except TypeError:
                raise InvalidInputError(
                    f"the key of {self.name} is {own!r}, which cannot be looked up: give key= as names of arguments, or as "
                    "a callable that returns a tuple of numbers, text, dtypes and shapes"
                ) from None
        self.note_untuned(why_untuned(values, self.names) or str(err))
        return None

    def note_untuned(self, why: str) -> None:
        """Warn, once for this function, that some of its calls cannot be tuned and run the default."""
        if not self._untuned_noted:
            self._untuned_noted = True
            warn_user(
                f"{self.full_name} runs its default where it cannot be tuned: {why.partition(chr(10))[0]}",
                TuningWarning,
            )

    def _call_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], values: tuple[Any, ...]) -> Call:
        """A call that is not made, for a question about it."""
        try:
            state = self._state(values)
        except Exception:  # tensors without data
            state = None
        known = state_without_data(values, self._reached) if state is None else CallState(*state)
        return Call(state=known, values=values, args=args, kwargs=kwargs)


def work_of_call(work: Callable[..., Any] | None, values: Any, name: str) -> Work | None:
    """The work of a call by the user's `work=`, which returns `Work` or a pair of flops and bytes; None without one.

    Args:
        values: the call's arguments.
        name: of the function, for the warning where `work` raises.
    """
    if work is None:
        return None
    try:
        answer = work(*values)
        return answer if isinstance(answer, Work) else Work(flops=float(answer[0]), bytes=float(answer[1]))
    except Exception as err:
        warn_user(f"work= of {name} failed ({err!r}): forecast without it", TuningWarning)
        return None
