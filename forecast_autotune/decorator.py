"""`forecast_autotune`, the decorator; it also carries the package's other public names."""

from __future__ import annotations

import importlib
from typing import Any


class Decorator:
    """A drop-in for `triton.autotune` that forecasts every config and compiles few.

        @forecast_autotune(configs=[triton.Config({"BLOCK": 128}), …], key=["n"])
        @triton.jit
        def kernel(…): …

    All arguments of `triton.autotune`, and the keyword-only ones of `ForecastAutotuner`. Because
    `from forecast_autotune import forecast_autotune` hides the module of that name, the module's public names are
    attributes here: `forecast_autotune.install()`, `forecast_autotune.load_inline(…)`, `forecast_autotune.Space`.

    Raises:
        InvalidInputError: it is given the kernel itself, as in `@forecast_autotune` without a call.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from .frontends.triton.autotuner import autotune

        return autotune(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        package = importlib.import_module(__package__)
        if name not in package.__all__:
            raise AttributeError(f"forecast_autotune has no attribute {name!r}; it has {', '.join(package.__all__)}")
        return getattr(package, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *importlib.import_module(__package__).__all__]

    def __repr__(self) -> str:
        return "<forecast_autotune: decorator, and the package's names>"

    def __reduce__(self) -> str:
        return "forecast_autotune"  # by its name in this module: there is but one


forecast_autotune = autotune = Decorator()
