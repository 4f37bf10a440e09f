"""installed(): which tuners of this process are decided here and which are not, and why."""

from __future__ import annotations

import atexit
import gc
import json
import logging
import os
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .install import ATTRIBUTE, after_first_launch, module_of, runs_of_its_own, taken_by_another, why_left
from .kernel_spec import is_forecast_tuner

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledTuner:
    """One tuner of Triton's class, or of a class derived from it.

    Attributes:
        kernel: the module and the name of the kernel's function.
        package: the module's first name.
        tuner: the tuner's class.
        configs: how many it chooses among.
        ours: whether its next launch of a new key is decided here.
        why: in what way, or why not.
        decided: keys decided here so far.
    """

    kernel: str
    package: str
    tuner: str
    configs: int
    ours: bool
    why: str
    decided: int


def installed() -> list[InstalledTuner]:
    """All tuners that live in this process, by kernel: those that `install()` reaches, those it does not, and our own.

    A tuner of a class that does not derive from Triton's is not known to anybody but its package, and not listed. After
    `install(inductor=True)`, Inductor's own candidates are one row, once it has listed any.
    """
    rows = [*filter(None, map(_described, living_tuners())), *_inductor()]
    return sorted(rows, key=lambda row: (row.kernel, row.tuner, row.configs))


def living_tuners() -> list[Any]:
    """The tuners of Triton's class, and of classes derived from it, that live in this process."""
    autotuner = sys.modules.get("triton.runtime.autotuner")
    if autotuner is None:
        return []
    classes, captured = [autotuner.Autotuner], _captured()
    for kind in classes:
        classes += [derived for derived in kind.__subclasses__() if derived not in classes]
    # An object refers to its class. `gc.get_objects()` would hand out tuples that other threads still make, and break those.
    # Types are asked, not objects: some stand for others, and would load those.
    tuners = [each for each in gc.get_referrers(*classes) if issubclass(type(each), autotuner.Autotuner)]
    return [each for each in tuners if type(each) is not _reached_tuner() and id(each) not in captured]


def report_to(folder: str) -> None:
    """Keep `installed()` in a file of this process's own in a folder, as JSON.

    It is written when a kernel was first launched here, for a process may be killed, and when the process ends.
    """

    def write() -> None:
        path = Path(folder) / f"{os.getpid()}-{threading.get_ident()}"
        try:
            path.write_text(json.dumps([asdict(row) for row in installed()]), encoding="utf-8")
            path.replace(path.with_name(f"{os.getpid()}.json"))
        except Exception:  # who asked is gone, or the disk is full: the program goes on
            log.debug("no list of tuners was written to %s", folder, exc_info=True)

    atexit.register(write)
    after_first_launch.append(write)


def _reached_tuner() -> Any:
    return getattr(sys.modules.get(f"{__package__}.reached_tuner"), "ReachedTuner", None)


def _captured() -> set[int]:
    """Identities of the tuners that stand for others in what torch has captured."""
    traced = sys.modules.get(f"{__package__}.torch_capture.traced_call")
    by_tuner = dict(getattr(traced, "captured_tuners", {}))
    return {id(each) for made in by_tuner.values() for each in made.values()}


def _described(kernel: Any) -> InstalledTuner | None:
    function = getattr(kernel, "base_fn", None)
    if function is None:  # one that is being made, or that a test left half made
        return None
    try:
        count = len(kernel.configs)
    except (AttributeError, TypeError):
        count = 0
    ours, why = _how(kernel)
    tuner = kernel if is_forecast_tuner(kernel) else vars(kernel).get(ATTRIBUTE)
    return InstalledTuner(
        kernel=f"{module_of(kernel)}.{getattr(function, '__qualname__', function)}",
        package=module_of(kernel).partition(".")[0],
        tuner=_name(type(kernel)),
        configs=count,
        ours=ours,
        why=why,
        decided=len(getattr(tuner, "decisions", ())),
    )


def _inductor() -> list[InstalledTuner]:
    """What was done with the candidates of torch.compile; nothing where they are not to be narrowed, or none was listed."""
    hook = sys.modules.get(f"{(__package__ or '').rpartition('.')[0]}.inductor.hook")
    if hook is None or not hook.is_wanted() or (counts := hook.counts()) is None:
        return []
    why = hook.why_not_in() or counts.text
    return [
        InstalledTuner(
            kernel="torch._inductor.products",
            package="torch",
            tuner="torch._inductor.choices.InductorChoices",
            configs=counts.candidates,
            ours=not hook.why_not_in(),
            why=why,
            decided=counts.products,
        )
    ]


def _how(kernel: Any) -> tuple[bool, str]:
    if is_forecast_tuner(kernel):
        return True, "decorated by forecast_autotune"
    if why := why_left(kernel):
        return False, why
    for run in runs_of_its_own(type(kernel)):
        names = set(getattr(getattr(run, "__code__", None), "co_names", ()))
        if {"super", "run"} <= names or {"Autotuner", "run"} <= names:
            continue
        if "prune_configs" in names:
            return True, f"{run.__qualname__} chooses among what is decided here"
        return False, f"{run.__qualname__} launches without Triton's own run, and asks for no list"
    if other := taken_by_another("run"):
        return False, f"{other} took the place of Autotuner.run after install()"
    if type(kernel.cache) is not dict and not hasattr(kernel.cache, "by_tritons_key"):  # a `DecisionCache`
        return False, f"its cache is a {_name(type(kernel.cache))}, which may hold what is not known here"
    return True, "launches are decided here"


def _name(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
