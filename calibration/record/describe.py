"""Add static features to the configs of existing traces, without a GPU: `python -m calibration record --describe`.

New recordings hold them from the start. The kernels of a trace must be those of the suite as it is today, or those of an
installed package of the version that was recorded: each is called with arguments that hold no data, and its launches are
described on the hardware that the trace's header names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernel_suite import Case, Kernel, SuiteKernel

from forecast_autotune.core.config import Config
from forecast_autotune.core.hardware import Hardware
from forecast_autotune.core.workload import Program
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.store import encoding
from forecast_autotune.store.encoding import from_text, to_text
from forecast_autotune.store.textfile import read_text, write_lines

from .evidence import fake_inputs
from .package_descriptions import NotThereError, package_descriptions
from .single_kernel import SingleKernel
from .worker import SEED, beginning, front_door, groups, has_code_of, recordable, variant_place

FIELD = "described"


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeReport:
    """What became of one trace."""

    trace: str
    configs: int = 0
    described: int = 0
    left: str = ""  # why it was left as it is


def describe_traces(
    folder: Path, say: Callable[[DescribeReport], None] = lambda _: None, *, packages: bool = False
) -> list[DescribeReport]:
    """Describe the configs of every trace in a folder, in place; all else in the files stays as it is.

    Args:
        folder: of traces; with `packages`, of folders of them too.
        say: called with what became of each.
    Raises:
        OSError: a file cannot be read or written.
        InvalidInputError: one is no trace.
    """
    results = []
    for path in sorted([*folder.glob("*.jsonl.gz"), *(folder.glob("*/*.jsonl.gz") if packages else ())]):
        results.append(describe_trace(path))
        say(results[-1])
    return results


def describe_trace(path: Path) -> DescribeReport:
    """Describe the configs of one trace, in place.

    Raises:
        OSError: the file cannot be read or written.
        InvalidInputError: it is no trace.
    """
    first, *lines = read_text(path).rstrip("\n").split("\n")
    what = f"{path}, line 1"
    header = encoding.fields(from_text(first, what), what)
    recorded = encoding.fields(header.get("recorded", {}), f"{what}: recorded")
    hardware = encoding.decode_hardware(header.get("hardware"), f"{what}: hardware")
    values = [
        dict(encoding.fields(from_text(line, f"{path}, line {n}"), f"{path}, line {n}"))
        for n, line in enumerate(lines, start=2)
    ]
    configs = [encoding.decode_config(value.get("config"), f"{path}: config") for value in values]
    try:
        if recorded.get("corpus") == "packages":
            default = encoding.decode_config(header.get("default"), f"{what}: default")
            descriptions_of = package_descriptions(recorded, configs, default, hardware)
        else:
            program = encoding.decode_program(header.get("program"), f"{what}: program")
            descriptions_of = list(
                descriptions(_kernel_of(recorded, program), str(recorded["case"]), configs, hardware)
            )
    except NotThereError as err:
        return DescribeReport(trace=path.name, left=str(err))
    written = [first]
    for line, value, described in zip(lines, values, descriptions_of, strict=True):
        bare = line if value.pop(FIELD, None) is None else to_text(value)
        written.append(
            f"{bare[:-1]},{to_text({FIELD: encoding.encode_static_features(described)})[1:]}" if described else bare
        )
    if written != [first, *lines]:
        mode = path.stat().st_mode
        write_lines(path, written)
        os.chmod(path, mode)
    return DescribeReport(trace=path.name, configs=len(configs), described=sum(map(bool, descriptions_of)))


def _kernel_of(recorded: Mapping[str, object], program: Program) -> SuiteKernel | SingleKernel | Kernel:
    """The kernel that a trace is of, as it is today.

    Raises:
        NotThereError: it is no GPU kernel of the suite, or has changed since.
    """
    kernel = recordable("cuda", str(recorded.get("corpus", "suite"))).get(str(recorded.get("kernel")))
    if kernel is None:
        raise NotThereError("it is of no GPU kernel of the suite")
    if recorded.get("case") not in {case.name for case in kernel.cases}:
        raise NotThereError("its case is no longer the suite's")
    now = front_door(kernel, beginning(groups(kernel), 2), "0").tuned.program  # type: ignore[attr-defined]
    is_same = _code_lines(program) == _code_lines(now) if isinstance(kernel, Kernel) else has_code_of(program, now)
    if not is_same:
        raise NotThereError("its kernels are no longer the suite's")
    return kernel


def _case_of(kernel: SuiteKernel | SingleKernel | Kernel, name: str) -> Case:
    for case in kernel.cases:
        if case.name == name:
            return case
    raise InvalidInputError(
        f"{kernel.name} has no case {name!r}: it has {', '.join(case.name for case in kernel.cases)}"
    )


def _code_lines(program: Program) -> list[str]:
    """Lines of a program in C++; what it says of its headers has not always been said alike."""
    lines = (line.rstrip() for line in program.source.splitlines())
    return [line for line in lines if line and not line.startswith("// headers: ")]


def descriptions(
    kernel: SuiteKernel | SingleKernel | Kernel, case: str, configs: Sequence[Config], hardware: Hardware
) -> Iterator[Mapping[str, float]]:
    """Static features of each config at a case; none of one that its variant refuses, or that is no longer in the space.

    Raises:
        InvalidInputError: the kernel has no such case.
    """
    from forecast_autotune.compilers.triton_launches import launches, static_features
    from forecast_autotune.frontends.load_inline.cuda_static_features import CudaSourceTexts
    from forecast_autotune.frontends.triton.simulated_driver import rehearsal

    with rehearsal(hardware=hardware):  # some kernels ask their device how large it is
        args = fake_inputs(kernel, _case_of(kernel, case), SEED)
        if isinstance(kernel, SingleKernel):
            job = kernel.tuner(list(kernel.space), budget="0").job(args, hardware=hardware)
            told = dict(zip(job.space, job.static_features, strict=True))
            yield from (told.get(config, {}) for config in configs)
            return
        if isinstance(kernel, Kernel):
            sources = CudaSourceTexts(kernel.tuned(budget="0").recipe)  # type: ignore[attr-defined]
            of_call = sources.of_call(kernel.name, args, hardware)
            yield from (of_call(config) or {} for config in configs)
            return
        for config in configs:
            variant = kernel.variants[variant_place(kernel, config)]
            try:
                launched = launches(variant.launch, args, {name: config[name] for name in variant.space.knobs})
            except Exception:  # it refuses the config at this size, or needs data to tell
                yield {}
            else:
                yield static_features(launched, hardware)
