"""Inductor's candidates for a product of matrices, which are known before they are rendered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.config import Config
from ...core.hardware import Hardware
from ...core.job import Job
from ...core.space import Space
from ...core.workload import Workload
from ...measure.probe import detect_hardware
from .candidates import Candidates, program_of, toolchain_of
from .listed import knobs_of
from .lowered import Lowered
from .product import fits, is_too_small, library_is_foreseen, product_features

FORESEEN = ("mm", "bmm", "addmm", "baddbmm", "scaled_mm")  # operations that are one product
# Bytes of the elements of products that a model decides where nothing can be measured: none was fitted on int8, and of fp8
# the library alone is as good as what its model chooses (`calibration fit-products --fp8`).
FITTED = (2, 4)
LAUNCH_US = 2.0  # of next to nothing, by the profiler (H200)


class ProductCandidates(Candidates):
    """What Inductor lists for a product, and more of the same templates.

    Args:
        lowered: the product.
        listed: Inductor's own candidates; the first is the default that others are compared with.
        more: further ones; those of a template that is not in Inductor's own list, those that do not fit, and those whose
            tiles are far too small, are left out.
    """

    def __init__(self, lowered: Lowered, listed: Sequence[Any], more: Sequence[Any] = ()) -> None:
        own = {candidate.template.uid for candidate in listed}
        hardware, product = detect_hardware(str(lowered.device)), lowered.product
        every = [(candidate, knobs_of(candidate)) for candidate in listed]
        further = ((candidate, knobs_of(candidate)) for candidate in more if candidate.template.uid in own)
        every += [
            (candidate, knobs)
            for candidate, knobs in further
            if fits(product, knobs, hardware) and not is_too_small(product, knobs, hardware)
        ]
        names = tuple(dict.fromkeys(name for _, knobs in every for name in knobs))
        self.parameters = parameters = dict[Config, tuple[str, Any]]()
        for candidate, knobs in every:
            config = Config({name: knobs.get(name) for name in names})
            parameters.setdefault(config, (candidate.template.uid, candidate.params))
        self.job_without_features = Job(
            workload=Workload(program=program_of(lowered.op), key=lowered.key, timing="inductor"),
            space=Space(list(parameters)),
            hardware=hardware,
            toolchain=toolchain_of(lowered.device.type),
        )
        self.epilogue_us = _epilogue_us(lowered, hardware)
        self._product = product
        self.library_is_foreseen = lowered.op in FORESEEN and library_is_foreseen(self._product)

    def _static_features(self, configs: Sequence[Config], hardware: Hardware) -> tuple[Mapping[str, float], ...]:
        return product_features(self._product, [config.knobs for config in configs], hardware)

    @property
    def unmeasured_job(self) -> Job:
        """The job where nothing can be measured: the model decides nothing on elements that it was not fitted on."""
        return self.job if self._product.itemsize in FITTED else self.job_without_features


def _epilogue_us(lowered: Lowered, hardware: Hardware) -> float:
    """What an epilogue saves that a template takes in: a launch, and the result is not written and read once more."""
    if not lowered.epilogue or hardware.bandwidth_gb_per_s <= 0:
        return 0.0
    product = lowered.product
    result = product.batch * product.m * product.n * product.out_itemsize
    return LAUNCH_US + 2.0 * result / hardware.bandwidth_gb_per_s / 1e3
