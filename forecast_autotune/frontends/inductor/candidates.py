"""Inductor's candidates for one operation as configs of a space, and the operation as a job.

A candidate is a template of Inductor's with its parameters, or a function of the vendor's library, which has none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from ...core.cached_property import cached_property
from ...core.config import Config
from ...core.hardware import Hardware, Toolchain
from ...core.job import Job
from ...core.workload import Program
from ...features.launch_features import work_of
from .product import LIBRARIES
from .request import PREFIX


class Candidates(ABC):
    """What goes to Inductor's compilers for one operation, as the space of a job.

    Attributes:
        parameters: by config, its template and what that is given.
        job_without_features: what is to be decided, as far as a store needs it.
        epilogue_us: what a template saves, against the library, by taking in what is done with the result.
        may_go_on_whole: whether all may be timed where nothing is forecast.
        library_is_foreseen: whether the forecasts know how good the library is beside the templates.
    """

    parameters: Mapping[Config, tuple[str, Any]]
    job_without_features: Job
    epilogue_us = 0.0
    may_go_on_whole = False
    library_is_foreseen = False

    @abstractmethod
    def _static_features(self, configs: Sequence[Config], hardware: Hardware) -> tuple[Mapping[str, float], ...]:
        """The features of configs; empty mappings for those that nothing is known of."""

    @cached_property
    def job(self) -> Job:
        """What is to be decided, with what forecasts need; that takes half of the time of a product that is decided."""
        job = self.job_without_features
        features = self._static_features(list(job.space), job.hardware)
        return replace(job, work=work_of([each for each in features if "programs" in each]), static_features=features)

    @property
    @abstractmethod
    def unmeasured_job(self) -> Job:
        """The job where nothing can be measured: without features, so undecided, where no model was fitted on the like."""

    @property
    def externs(self) -> tuple[Config, ...]:
        """Functions of libraries, which need no compiling."""
        return tuple(config for config in self.job_without_features.space if is_library(config))


def is_library(config: Config) -> bool:
    """Whether a config is a function of a library."""
    return str(config.knobs["template"]).startswith(LIBRARIES)


def program_of(op: str) -> Program:
    """An operation as a program: the same in all versions of torch, whose templates differ by the toolchain."""
    return Program(name=PREFIX + op, language="triton", source=f"torch._inductor's candidates for {op}")


@lru_cache(maxsize=8)
def toolchain_of(device_type: str) -> Toolchain:
    """What compiles for a kind of device."""
    if device_type != "cpu":
        from ..triton.target import current_toolchain

        return current_toolchain()
    return Toolchain(versions={"torch": str(torch.__version__)})
