"""How products are decided, and what that is called in keys of caches. Importing this imports nothing of Inductor.

It is asked while Inductor is half imported, before torch 2.12.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from ...core.budget import Budget
from ...core.digest import digest
from ...core.fork_safe_lock import fork_safe_lock
from ...core.user_warnings import SEE_TRACEBACK, warn_once, warn_user
from ...core.workload import Program
from ...errors import CacheMissError, SettingError, TuningWarning
from ...settings import Settings
from ...surrogates.by_name import make_surrogate
from ...surrogates.prior import products_prior
from ..request import Request, make_request
from ..torch_cache_keys import pack_version, stored_decisions
from .hook import is_wanted

log = logging.getLogger(__name__)

PREFIX = "inductor."
"""Before the name of an operation, the name of a program in stores."""

GENERATED = PREFIX + "generated"
"""The program that kernels which Inductor generates are stored as."""

DEFAULT_BUDGET = "4"

_lock = fork_safe_lock()
_aside = ""


def is_inductors(program: Program) -> bool:
    """Whether a program's configs are candidates of Inductor's: they are met and tuned where `torch.compile` compiles."""
    return program.name.startswith(PREFIX)


def stood_aside() -> str:
    """Why Inductor's lists are left as they are; empty while they are narrowed."""
    return _aside


def is_active() -> bool:
    """Whether Inductor's lists are narrowed: `install()` holds, and nothing has made us stand aside."""
    return is_wanted() and not _aside


def stand_aside(why: Exception | str) -> None:
    """Leave Inductor's lists as they are from now on, and say so once."""
    global _aside
    reason = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
    log.debug("Inductor is left alone", exc_info=isinstance(why, Exception))
    with _lock:
        if _aside:
            return
        _aside = reason
    advice = "" if isinstance(why, str) else f"; {SEE_TRACEBACK}"
    warn_user(f"torch.compile's candidates are left as Inductor lists them: {reason}{advice}", TuningWarning)


@contextmanager
def stand_aside_on_error() -> Iterator[None]:
    """Stand aside where what is done within this fails; the code after it goes on.

    Raises:
        CacheMissError: mode is `strict`.
        SettingError: a setting does not parse.
    """
    try:
        yield
    except (CacheMissError, SettingError):
        raise
    except Exception as err:
        stand_aside(err)


def uuid() -> str:
    """What our choices are called in keys of caches: how they choose, and what Inductor's decisions were at first asking.

    Settings that do not parse have a name of their own: they are an error where candidates are chosen.
    """
    try:
        return _first_cache_name()
    except SettingError as err:
        warn_once(str(err), TuningWarning)  # nothing may be chosen, as on a CPU
        return "forecast_autotune unset"


@functools.cache
def _first_cache_name() -> str:
    with stand_aside_on_error():
        return cache_name()
    return "forecast_autotune aside"


def operation_request() -> Request:
    """How operations that are no products are decided: as kernels are."""
    return make_request(None, default_budget=DEFAULT_BUDGET)


def product_request(*, fp8: bool = False) -> Request:
    """How products are decided: as kernels are, by a model that was fitted on products where the settings name none.

    Args:
        fp8: whether these are products of fp8.
    """
    request = operation_request()
    if knows_libraries(request):
        return replace(request, surrogate=make_surrogate("auto", model=products_prior(fp8=fp8)))
    return request


def knows_libraries(request: Request) -> bool:
    """Whether what forecasts products was fitted on the library's function beside the templates."""
    return request.settings.model is None and request.settings.surrogate in (None, "auto")


def cache_name() -> str:
    """What changes with what may change a choice: mode, model, packs, and decisions on Inductor's candidates as of now.

    Not the configs of generated kernels: Inductor keeps those beside what it caches, and chooses them after.

    Raises:
        SettingError: a setting does not parse.
    """
    request = product_request()
    budget = Budget(request.budget)
    parts = [
        request.settings.mode,
        str(budget.measures),
        str(budget.all),  # for which what was tried in part is tried again
        request.surrogate.name,
        request.surrogate.model_version,
        request.settings.toolchain,
    ]
    parts += [other.surrogate.model_version for other in (operation_request(), product_request(fp8=True))]
    if request.settings.mode not in ("first", "forecast"):
        parts += sorted(_decided(request.settings))
        parts += map(pack_version, request.settings.packs)
    return f"forecast_autotune {digest(*parts)}"


def _decided(settings: Settings) -> list[str]:
    return [
        f"{d.digest} {d.decision.config.digest}"
        for d in stored_decisions(settings, PREFIX)
        if is_inductors(program := d.tuning_key.workload.program) and program.name != GENERATED
    ]
