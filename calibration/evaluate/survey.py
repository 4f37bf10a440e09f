"""What can be told of a package's Triton kernels without a GPU: `python -m calibration survey PACKAGE|FOLDER … [--json]`.

Every kernel that a host function launches is described, as before a tuning run, from its source and plausible arguments;
the package is not imported. A row for each package: its kernels, and of how many the bytes (`traffic`), the operations
(`flops`) and the trips of all loops are known, all three (`described`), or too little (`abstained`). Trips that data
decides are estimated by a description and count as `by data`. Then why kernels abstained.

Files that name flash-linear-attention or Liger are left out: their kernels are kept back for judging.

Exit codes: 0 reported, 2 bad input.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path

from forecast_autotune.cli.output import print_json, print_table
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.features.hardware_sheets import sheet_for
from forecast_autotune.features.kernel_walk.symbols import last_name
from forecast_autotune.features.launch_features import describe_call, launch_features

from ..command import verb_parser
from .static_kernels import GRID, Folder, StaticKernel, launches, plausible_call

KEPT_BACK = ("fla-org", "flash-linear-attention", "Songlin Yang", "liger_kernel", "Liger-Kernel")
_NEAR = 1e-9
_COUNTED = frozenset([
    "sum", "max", "min", "argmax", "argmin", "reduce", "cumsum", "cumprod", "associative_scan", "dot", "exp", "exp2", "log",
    "log2", "sqrt", "rsqrt", "sin", "cos", "sigmoid", "erf", "tanh", "softmax", "fma",
])  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What is known of one kernel. `trips` is known, by data, or none; `why` says what is missing, if anything is."""

    package: str
    kernel: str
    path: str
    tuned: bool
    traffic: bool
    flops: bool
    trips: str
    why: str = ""

    @property
    def described(self) -> bool:
        """Whether bytes, operations and trips are all known, trips that data decides among them as estimates."""
        return self.traffic and self.flops and self.trips != "none"


def described(package: str, kernel: StaticKernel, given: dict[str, object]) -> Description:
    """Describe a kernel as a tuning run would, for a plausible call."""
    call = plausible_call(kernel, given)
    knobs = {"num_warps": 4, "num_stages": 3, **(kernel.configs[0] if kernel.configs else {})}
    features = launch_features(kernel, describe_call(call), [knobs], grid=GRID, hardware=sheet_for("H200"))[0]
    traffic = features.get("traffic_bytes", 0.0) > 0
    work = features.get("flops") or features.get("elementwise", 0.0)
    least = features.get("least_flops", work)
    loops = any(isinstance(node, (ast.For, ast.While)) for node in ast.walk(kernel.definition))
    dots = any(
        isinstance(n, ast.Call) and last_name(n.func) in ("dot", "dot_scaled") for n in ast.walk(kernel.definition)
    )
    flops = features.get("flops", 0.0) > 0 if dots else work > 0 or not _computes(kernel.definition)
    known = not loops or least >= work * (1 - _NEAR)
    trips = "none" if not traffic and loops else "known" if known else "by data"
    why = ""
    if kernel.language != "triton":
        why = f"written in {kernel.language}"
    elif not traffic:
        why = _without_traffic(kernel)
    elif not flops:
        why = "a product whose tiles are not known" if dots else "arithmetic that is not seen"
    return Description(
        package=package, kernel=kernel.__name__, path=kernel.path, tuned=_is_tuned(kernel), traffic=traffic, flops=flops,
        trips=trips, why=why,
    )  # fmt: skip


def _without_traffic(kernel: StaticKernel) -> str:
    calls = [node for node in ast.walk(kernel.definition) if isinstance(node, ast.Call)]
    names = {last_name(node.func) for node in calls}
    if "inline_asm_elementwise" in names:
        return "inline assembly"
    if names & {"pointer_type", "PointerType"}:
        return "pointers kept in memory"
    if not names & {"load", "store", "gather", "scatter"} and not any(n.startswith("atomic_") for n in names):
        return "accesses in helpers that are not found"
    return "sizes of its accesses are not known"


def _computes(definition: ast.FunctionDef) -> bool:
    """Whether what is stored comes from arithmetic; kernels that move or select have none to count."""
    sources: dict[str, list[ast.expr]] = {}
    waiting: list[ast.expr] = []
    for node in ast.walk(definition):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        sources.setdefault(name.id, []).append(node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            sources.setdefault(node.target.id, []).append(ast.BinOp(node.target, node.op, node.value))
        elif isinstance(node, ast.Call) and (
            last_name(node.func) == "store" or last_name(node.func).startswith("atomic_")
        ):
            waiting += node.args[1:2] + [k.value for k in node.keywords if k.arg in ("value", "val")]
    seen: set[str] = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.BinOp) and not isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.LShift, ast.RShift)):
            return True
        if isinstance(node, ast.Name) and node.id not in seen:
            seen.add(node.id)
            waiting += sources.get(node.id, [])
        elif isinstance(node, ast.Call):
            called = last_name(node.func)
            if called in _COUNTED:
                return True
            if called != "load":
                waiting += node.args[1:] if called == "where" else node.args
                waiting += [node.func.value] if isinstance(node.func, ast.Attribute) else []
        elif isinstance(node, (ast.IfExp, ast.UnaryOp, ast.Subscript, ast.Tuple, ast.BinOp)):
            waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    return False


def _is_tuned(kernel: StaticKernel) -> bool:
    return any("tun" in ast.unparse(d).split("(")[0].lower() for d in kernel.definition.decorator_list)


def survey(package: str, root: Path, left_out: Sequence[str] = ()) -> list[Description]:
    """Every launched kernel of a folder.

    Args:
        left_out: patterns of paths, as `fnmatch` takes them, of files that are not looked at.
    """
    folder = Folder(root)
    launched = launches(folder)
    found = []
    for path in folder.files():
        relative = path.relative_to(root).as_posix()
        if any(fnmatch(relative, pattern) for pattern in left_out):
            continue
        module = folder.module(path)
        if module is None or any(word in module.text for word in KEPT_BACK):
            continue
        kernels = ((kernel, launched.get((path, name))) for name, kernel in module.kernels.items())
        found += [described(package, kernel, given) for kernel, given in kernels if given is not None]
    return found


def folder_of(name: str) -> Path:
    """The folder of a package or of that path.

    Raises:
        InvalidInputError: neither is there.
    """
    if Path(name).is_dir():
        return Path(name).resolve()
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        raise InvalidInputError(f"{name!r} is no folder, and no package of that name is installed")
    return Path(places[0]).resolve()


COLUMNS = (
    "package",
    "kernels",
    "tuned",
    "traffic",
    "flops",
    "trips known",
    "by data",
    "described",
    "abstained",
    "share",
)


def row(package: str, found: Sequence[Description]) -> list[str]:
    """The table's row of a package."""
    whole = sum(d.described for d in found)
    trips = Counter(d.trips for d in found)
    counts = [
        len(found), sum(d.tuned for d in found), sum(d.traffic for d in found), sum(d.flops for d in found), trips["known"],
        trips["by data"], whole, len(found) - whole,
    ]  # fmt: skip
    return [package, *map(str, counts), f"{whole / len(found):.0%}" if found else "-"]


def main(words: Sequence[str] | None = None) -> int:
    """The verb."""
    parser = verb_parser("survey", __doc__)
    parser.add_argument("packages", nargs="+", metavar="PACKAGE|FOLDER")
    parser.add_argument(
        "--leave-out",
        action="append",
        default=[],
        metavar="PATTERN",
        help="files not to look at, such as '*/_amd/*'; repeat it",
    )
    parser.add_argument("--json", action="store_true", help="every kernel, for programs")
    given = parser.parse_args(words)
    try:
        found = {name: survey(Path(name).name, folder_of(name), given.leave_out) for name in given.packages}
    except InvalidInputError as err:
        print(f"survey: {err}", file=sys.stderr)
        return 2
    every = [description for each in found.values() for description in each]
    if given.json:
        print_json([asdict(d) | {"described": d.described} for d in every])
        return 0
    rows = [row(Path(name).name, each) for name, each in found.items()]
    print_table(COLUMNS, [*rows, row("all", every)] if len(rows) > 1 else rows, right=COLUMNS[1:])
    reasons = Counter((d.package, d.why) for d in every if not d.described)
    if reasons:
        print()
        print_table(
            ("package", "why", "kernels"), [[p, w, str(n)] for (p, w), n in reasons.most_common()], right=("kernels",)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
