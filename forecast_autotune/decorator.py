"""`forecast_autotune`, the decorator; it also carries the package's other public names."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .frontends.triton.autotune import Autotune

if TYPE_CHECKING:
    import forecast_autotune as package


class Decorator(Autotune):
    """A drop-in for `triton.autotune` that forecasts every config and compiles few.

        @forecast_autotune(configs=[triton.Config({"BLOCK": 128}), …], key=["n"])
        @triton.jit
        def kernel(…): …

    Its arguments stand with `__call__`. Because `from forecast_autotune import forecast_autotune` hides the module of that
    name, the module's public names are attributes here: `forecast_autotune.install()`,
    `forecast_autotune.load_inline(…)`, `forecast_autotune.Space`.
    """

    __name__ = "forecast_autotune"

    if TYPE_CHECKING:
        Config = package.Config
        ForecastAutotuner = package.ForecastAutotuner
        Space = package.Space
        Work = package.Work
        Decision = package.Decision
        Explanation = package.Explanation
        Forecast = package.Forecast
        Abstention = package.Abstention
        Surrogate = package.Surrogate
        BaseSurrogate = package.BaseSurrogate
        StatelessSurrogate = package.StatelessSurrogate
        AutotuneError = package.AutotuneError
        BuildError = package.BuildError
        CacheMissError = package.CacheMissError
        InvalidInputError = package.InvalidInputError
        MissingExtraError = package.MissingExtraError
        NoBoxError = package.NoBoxError
        NoGpuError = package.NoGpuError
        NoWorkingConfigError = package.NoWorkingConfigError
        RemoteStoreError = package.RemoteStoreError
        SettingError = package.SettingError
        StoreError = package.StoreError
        StoreWarning = package.StoreWarning
        TuningWarning = package.TuningWarning
        WorkerError = package.WorkerError
        install = staticmethod(package.install)
        uninstall = staticmethod(package.uninstall)
        installed = staticmethod(package.installed)
        tuner_of = staticmethod(package.tuner_of)
        load_inline = staticmethod(package.load_inline)
        rehearsal = staticmethod(package.rehearsal)
        tune_pending = staticmethod(package.tune_pending)
        variants = staticmethod(package.variants)
        freeze = staticmethod(package.freeze)
        search = staticmethod(package.search)
        SearchTask = package.SearchTask
        forecast_autotune: Decorator
        autotune: Decorator
    else:

        def __getattr__(self, name: str) -> Any:
            package = importlib.import_module(__package__)
            if name not in package.__all__:
                raise AttributeError(
                    f"forecast_autotune has no attribute {name!r}; it has {', '.join(package.__all__)}"
                )
            return getattr(package, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *importlib.import_module(__package__).__all__]

    def __repr__(self) -> str:
        return "<forecast_autotune: decorator, and the package's names>"


forecast_autotune = autotune = Decorator()
