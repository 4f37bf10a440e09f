"""Compiling ahead what a Python function launches: it is called on tensors without data, and nothing is launched."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from ..core.config import Config
from ..core.fork_safe_lock import fork_safe_lock
from ..core.hardware import Hardware
from ..core.outcome import Evidence, Failure
from ..errors import InvalidInputError
from ..features.launch_features import combine_launches, describe_call, distinct_elements, launch_features
from ..protocols import without_limit
from .triton_binding import bind_call, defaults_of
from .triton_compile import SourceCompiler
from .triton_source import NotAheadError, Source, gpu_target, make_source

log = logging.getLogger(__name__)

DESCRIBED_OPTIONS = ("num_warps", "num_stages", "maxnreg")
"""Options of a launch that its description counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A launch as it was asked for; `grid` is as it was given, a function of the arguments or numbers."""

    kernel: Any
    grid: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class _ThisThread(threading.local):
    noted: list[Launched] | None = None


_this_thread = _ThisThread()
_one_at_a_time = fork_safe_lock()
_starts: WeakKeyDictionary[Any, dict[int, int]] = WeakKeyDictionary()
"""Of fake modes that `without_data` made: where the storages of the tensors given begin, by that of the fake one."""


def without_data(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments for several calls of `launches`, tensors among them made fake once: that is most of what a call takes."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.utils._pytree import tree_iter, tree_map_only

    given = (tuple(args), dict(kwargs))
    if any(isinstance(each, FakeTensor) for each in tree_iter(given)):
        return given
    mode = FakeTensorMode(allow_non_fake_inputs=True)  # a layer's weights, which are no argument
    _starts[mode] = {}
    made: tuple[tuple[Any, ...], dict[str, Any]] = tree_map_only(
        torch.Tensor, lambda tensor: _made_fake(tensor, mode, _starts[mode]), given
    )
    return made


def _made_fake(tensor: Any, mode: Any, starts: dict[int, int]) -> Any:
    made = mode.from_tensor(tensor, static_shapes=True)
    starts[made.untyped_storage()._cdata] = _address(tensor.untyped_storage())
    return made


def launches(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Launched]:
    """The kernels that a call would launch. None is launched, and torch's own operations compute nothing.

    Tensors are replaced by fake ones; where some are fake already, their mode is used. In their place a launch holds what
    Triton asks of a tensor: its type and the alignment of its address, for one that the function makes as torch's allocators
    align it. No tensor is written. All else that the function does happens, and a tensor without data that it keeps is there
    at its next call.

    Raises:
        InvalidInputError: such a function is being called already.
        whatever the function raises, which may be more than usual on tensors without data.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.utils._pytree import tree_iter, tree_map_only

    args, kwargs = without_data(args, kwargs)
    modes = [each.fake_mode for each in tree_iter((args, kwargs)) if isinstance(each, FakeTensor)]
    mode = modes[0] if modes else FakeTensorMode(allow_non_fake_inputs=True)
    starts = dict(_starts.get(mode, {}))

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if isinstance(tensor, FakeTensor) else _made_fake(tensor, mode, starts)

    def shown(tensor: torch.Tensor) -> _Tensor:
        offset = tensor.storage_offset() * tensor.itemsize
        start = starts.get(tensor.untyped_storage()._cdata, 0)
        size = tensor.untyped_storage().nbytes()
        return _Tensor(dtype=tensor.dtype, address=start + offset, size=size, elements=distinct_elements(tensor))

    args, kwargs = tree_map_only(torch.Tensor, fake, (args, kwargs))  # those beside fake ones
    with mode, _fake_operands(fake), _noted() as noted:
        function(*args, **kwargs)
        return [
            Launched(
                kernel=each.kernel,
                grid=each.grid,
                args=tree_map_only(FakeTensor, shown, each.args),
                kwargs=tree_map_only(FakeTensor, shown, each.kwargs),
            )
            for each in noted
        ]


def _fake_operands(fake: Callable[[Any], Any]) -> AbstractContextManager[Any]:
    """Give fake tensors to every operation: one on tensors that are no arguments of the call would be computed otherwise."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map_only

    class FakeOperands(TorchDispatchMode):  # type: ignore[misc]  # torch leaves it untyped
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.lift_fresh.default:  # of a new tensor, whose values may be asked for
                return func(*args, **(kwargs or {}))
            args, kwargs = tree_map_only(torch.Tensor, fake, (args, kwargs or {}))
            return func(*args, **kwargs)

    return FakeOperands()


def static_features(launched: Sequence[Launched], hardware: Hardware) -> dict[str, float]:
    """What can be said, without compiling, of a config that launches these; see `combine_launches` for the names."""
    return combine_launches([_features(each, hardware) for each in launched])


def _features(launched: Launched, hardware: Hardware) -> dict[str, float]:
    kernel = launched.kernel
    bound = bind_call(kernel.arg_names, defaults_of(kernel), launched.args, launched.kwargs)
    call = describe_call(bound.arguments)
    options = {name: value for name, value in bound.options.items() if name in DESCRIBED_OPTIONS}
    return launch_features(kernel, call, [options], grid=launched.grid, hardware=hardware)[0]


class LaunchesCompiler:
    """Compiles, for each config, every kernel that is launched under it.

    Where a config's launches cannot be learned, it counts as built, and its launch compiles it. The evidence of a config
    with several kernels is the largest figure of registers and of shared memory, and the sum of all else.

    Args:
        launched: the launches made under a config; raises where they cannot be learned. Called once for each config, in
            the caller's thread.
        target: `cuda:90`, `hip:gfx942`, or a GPUTarget.
        others: see `SourceCompiler`.
    Raises:
        InvalidInputError: the target does not parse.
    """

    overlaps_timing = True

    def __init__(self, launched: Callable[[Config], Sequence[Launched]], *, target: object, **others: Any) -> None:
        self._launched = launched
        self._target = gpu_target(target)
        self._parts: dict[Config, Launched | None] = {}
        self._compiler = SourceCompiler(self._source, **others)

    @property
    def workers(self) -> int:
        """How many kernels are compiled side by side."""
        return self._compiler.workers

    def paused(self) -> AbstractContextManager[None]:
        """Stop all compiling, for as long as something is timed that must not be disturbed."""
        return self._compiler.paused()

    def compile(
        self,
        configs: Iterable[Config],
        *,
        workers: int | None = None,
        on_wait: Callable[[float], float] = without_limit,
    ) -> Generator[tuple[Config, Evidence | Failure], None, None]:
        """Compile what each config launches, yielding each as all of it is done. See `SourceCompiler.compile`."""
        whose: dict[Config, Config] = {}
        results: dict[Config, list[Evidence | Failure]] = {}
        wanted: Counter[Config] = Counter()

        def parts() -> Iterator[Config]:
            for config in configs:
                launches = self._launches(config)
                results[config], wanted[config] = [], len(launches)
                for i, launched in enumerate(launches):
                    part = Config({"config": config.digest, "launch": i})
                    self._parts[part], whose[part] = launched, config
                    yield part

        with closing(self._compiler.compile(parts(), workers=workers, on_wait=on_wait)) as compiling:
            for part, result in compiling:
                config = whose[part]
                results[config].append(result)
                if len(results[config]) == wanted[config]:
                    yield config, combine_evidence(results[config])

    def _launches(self, config: Config) -> Sequence[Launched | None]:
        """What is launched under a config; None for what cannot be learned."""
        try:
            return self._launched(config) or [None]
        except Exception:  # its launch will show whether it was for want of data
            log.debug("what %s launches is not known", config, exc_info=True)
            return [None]

    def _source(self, part: Config) -> Source:
        launched = self._parts.pop(part)
        if launched is None:
            raise NotAheadError("what it launches cannot be told")
        return make_source(launched.kernel, launched.args, launched.kwargs, self._target)


def combine_evidence(results: Sequence[Evidence | Failure]) -> Evidence | Failure:
    """What is known of several kernels as of one; a failure, if there is any, one that crashed before others."""
    failures = sorted((r for r in results if isinstance(r, Failure)), key=lambda r: (not r.crashed, r.transient))
    built = [r for r in results if isinstance(r, Evidence)]
    cost_s = sum(r.compile_s for r in built) + sum(r.cost_s for r in failures)
    if failures:
        return replace(failures[0], cost_s=cost_s)

    def known(name: str, join: Callable[[list[int]], int]) -> int | None:
        values = [getattr(r, name) for r in built]
        return None if None in values else join(values)

    instructions: Counter[str] = Counter()
    for each in built:
        instructions.update(each.instructions)
    return Evidence(
        compile_s=cost_s,
        registers=known("registers", max),
        spill_bytes=known("spill_bytes", sum),
        stack_bytes=known("stack_bytes", sum),
        shared_bytes=known("shared_bytes", max),
        code_bytes=known("code_bytes", sum),
        instructions=dict(instructions),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """What Triton asks of a tensor when it specialises a kernel, and what its description does."""

    dtype: Any
    address: int
    size: int  # bytes of its storage
    elements: int

    def data_ptr(self) -> int:
        return self.address

    def ptr_range(self) -> int:
        return self.size

    def element_size(self) -> int:
        return int(self.dtype.itemsize)

    def numel(self) -> int:
        return self.elements


def _address(storage: Any) -> int:
    try:
        return int(storage.data_ptr())
    except RuntimeError:  # that of a fake tensor or one on the meta device
        return 0


@contextmanager
def _noted() -> Iterator[list[Launched]]:
    """Note the launches of this thread in place of making them. A tuner of Triton's own would time them: it raises."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    if _this_thread.noted is not None:  # the lock would wait for this very thread
        raise InvalidInputError(
            "what a function launches cannot be told while it is called to tell what another one does"
        )
    with _one_at_a_time:
        run, bench = JITFunction.run, Autotuner._bench

        def note(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            if _this_thread.noted is None:
                return run(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            _this_thread.noted.append(Launched(kernel=kernel, grid=grid, args=args, kwargs=kwargs))
            return None

        def refuse(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            if _this_thread.noted is None:
                return bench(tuner, *args, **kwargs)
            raise InvalidInputError(f"{tuner.base_fn.__name__} tunes itself: what it will launch cannot be told")

        _this_thread.noted = []
        JITFunction.run, Autotuner._bench = note, refuse
        try:
            yield _this_thread.noted
        finally:
            JITFunction.run, Autotuner._bench = run, bench
            _this_thread.noted = None
