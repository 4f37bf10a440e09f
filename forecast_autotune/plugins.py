"""What servers load in each of their processes: `install()`, where the environment asks for it.

vLLM calls the entry points of `vllm.general_plugins`, SGLang those of `sglang.srt.plugins`, if the package is installed.
"""

from __future__ import annotations

import os
import sys


def install_if_asked() -> None:
    """Install where FORECAST_AUTOTUNE_MODE is set; where that fails, warn and let the server start without.

    Not for an engine that forecasts for us in this process.
    """
    if not os.environ.get("FORECAST_AUTOTUNE_MODE", "").strip():
        return
    forecasting = sys.modules.get("forecast_autotune.language.in_vllm")
    if forecasting is not None and forecasting.is_making_engine():
        return
    try:
        from .frontends.install import install
        from .settings import Settings

        Settings.from_environment()  # else what does not parse would be told by the first kernel that is launched
        install()
    except Exception as err:  # vLLM catches nothing that a plugin raises
        from .core.user_warnings import warn_user
        from .errors import TuningWarning

        warn_user(
            f"kernels are left to Triton's own tuner, for forecast_autotune's install() failed: {type(err).__name__}: {err}",
            TuningWarning,
        )
