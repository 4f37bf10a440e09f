"""The launchers that Triton up to 3.6 has a C compiler build, one for each signature, built while a kernel compiles.

A first launch would wait for it: 0.2 to 0.4 s, a fourth of the seconds that a first step of RWKV-7 took (H200, 13 kernels).
Later versions of Triton have one launcher for all.
"""

from __future__ import annotations

import logging
import threading
from importlib import import_module
from typing import Any

from .triton_source import Source

log = logging.getLogger(__name__)

_DRIVERS = {
    "cuda": ("triton.backends.nvidia.driver", "CudaLauncher"),
    "hip": ("triton.backends.amd.driver", "HIPLauncher"),
}


class _Unknown:
    """Stands for what a compile will say of a kernel: nothing that a launcher is built from."""

    tensordesc_meta = None

    def __init__(self, target: Any) -> None:
        self.warp_size, self.cluster_dims = target.warp_size, (1, 1, 1)

    def __getattr__(self, name: str) -> int:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0


class LauncherBuilds:
    """Builds launchers in threads, into Triton's cache, where a kernel's first launch finds them."""

    def __init__(self) -> None:
        self._begun: set[Any] = set()
        self._refused = False

    def begin(self, made: Source) -> threading.Thread | None:
        """Begin to build a source's launcher; returns what builds it, None where there is nothing to build.

        Launchers of descriptors need what only a compile tells of them.
        """
        alike = made.target.backend, str(tuple(made.source.signature.values()))
        if self._refused or alike in self._begun or "tensordesc" in alike[1]:
            return None
        self._begun.add(alike)
        try:
            module, name = _DRIVERS[made.target.backend]
            driver: Any = import_module(module)
            if not hasattr(driver, "make_launcher"):  # one for all
                self._refused = True
                return None
            build = threading.Thread(
                target=self._build, args=(getattr(driver, name), made), name="forecast_autotune-launcher"
            )
            build.start()
        except Exception as err:  # a backend of another make, a process that ends
            self._refuse(err)
            return None
        return build

    def _build(self, launcher: Any, made: Source) -> None:
        try:
            launcher(made.source, _Unknown(made.target))
        except Exception as err:  # no C compiler, no driver to link with: the launch will say so, if there is one
            self._refuse(err)

    def _refuse(self, err: Exception) -> None:
        self._refused = True
        log.info("launchers are built by first launches: %s: %s", type(err).__name__, err)


launcher_builds = LauncherBuilds()
"""This process's."""
