"""Forecast every config before compiling any, measure the few that promise most, remember why.

Idiom: `import forecast_autotune as fa`. Names are resolved on first use, so that importing this pulls in neither torch nor
triton.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .core.config import Config as Config
    from .core.decision import Decision as Decision
    from .core.forecast import Abstention as Abstention
    from .core.forecast import Forecast as Forecast
    from .core.space import Space as Space
    from .core.workload import Work as Work
    from .decorator import autotune as autotune
    from .decorator import forecast_autotune as forecast_autotune
    from .errors import AutotuneError as AutotuneError
    from .errors import BuildError as BuildError
    from .errors import CacheMissError as CacheMissError
    from .errors import InvalidInputError as InvalidInputError
    from .errors import MissingExtraError as MissingExtraError
    from .errors import NoBoxError as NoBoxError
    from .errors import NoGpuError as NoGpuError
    from .errors import NoWorkingConfigError as NoWorkingConfigError
    from .errors import RemoteStoreError as RemoteStoreError
    from .errors import SettingError as SettingError
    from .errors import StoreError as StoreError
    from .errors import StoreWarning as StoreWarning
    from .errors import TuningWarning as TuningWarning
    from .errors import WorkerError as WorkerError
    from .frontends.install import install as install
    from .frontends.install import uninstall as uninstall
    from .frontends.load_inline.tuned_module import load_inline as load_inline
    from .frontends.online.learning_threads import freeze as freeze
    from .frontends.pending import tune_pending as tune_pending
    from .frontends.triton.autotuner import ForecastAutotuner as ForecastAutotuner
    from .frontends.triton.install import tuner_of as tuner_of
    from .frontends.triton.installed import installed as installed
    from .frontends.triton.simulated_driver import rehearsal as rehearsal
    from .frontends.variants.tuned_variants import variants as variants
    from .program_search.run import search as search
    from .program_search.task import SearchTask as SearchTask
    from .protocols import Surrogate as Surrogate
    from .store.explanation.explanation import Explanation as Explanation
    from .surrogates.base import BaseSurrogate as BaseSurrogate
    from .surrogates.base import StatelessSurrogate as StatelessSurrogate

    __version__: str

_HOMES = {
    "forecast_autotune": "decorator",
    "autotune": "decorator",
    "install": "frontends.install",
    "uninstall": "frontends.install",
    "installed": "frontends.triton.installed",
    "tuner_of": "frontends.triton.install",
    "tune_pending": "frontends.pending",
    "freeze": "frontends.online.learning_threads",
    "rehearsal": "frontends.triton.simulated_driver",
    "ForecastAutotuner": "frontends.triton.autotuner",
    "Config": "core.config",
    "Space": "core.space",
    "Work": "core.workload",
    "Decision": "core.decision",
    "Explanation": "store.explanation.explanation",
    "Forecast": "core.forecast",
    "Abstention": "core.forecast",
    "Surrogate": "protocols",
    "BaseSurrogate": "surrogates.base",
    "StatelessSurrogate": "surrogates.base",
    "AutotuneError": "errors",
    "BuildError": "errors",
    "CacheMissError": "errors",
    "InvalidInputError": "errors",
    "MissingExtraError": "errors",
    "NoBoxError": "errors",
    "NoGpuError": "errors",
    "NoWorkingConfigError": "errors",
    "RemoteStoreError": "errors",
    "SettingError": "errors",
    "StoreError": "errors",
    "StoreWarning": "errors",
    "TuningWarning": "errors",
    "WorkerError": "errors",
    "load_inline": "frontends.load_inline.tuned_module",
    "variants": "frontends.variants.tuned_variants",
    "search": "program_search.run",
    "SearchTask": "program_search.task",
}

__all__ = list(_HOMES)


if not TYPE_CHECKING:  # with it, a type checker would take a misspelt name for one of any type

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("forecast-autotune")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
