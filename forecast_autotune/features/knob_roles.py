"""What a knob stands for, told by its name: the words that kernels, tuners and benchmarks use for the same few things."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ..core.digest import Value

TRITON_OPTIONS: Mapping[str, Value] = {
    "num_warps": 4,
    "num_stages": 3,
    "num_ctas": 1,
    "maxnreg": None,
    "ir_override": None,
}
"""What a `triton.Config` sets beside the kernel's own parameters, and what holds where it does not or sets None."""

VARIANT_KNOBS = ("variant", "source")
"""Knobs that say which of several texts a config runs: a callable of `fa.variants`, a source of `fa.load_inline`."""

_ROLE_BY_NAME = tuple(
    (re.compile(pattern, re.IGNORECASE), role)
    for pattern, role in (
        (r"stride|(?<!work)(?<!work_)group|(?<!b)order|swizzle|^[mn]dim[ab]$", "order"),
        (r"warps|threads|block_?(size|dim)_?[xyz\d]?$|work_?group|wg_?size|^local_|^[mn]dimc$", "threads"),
        (r"stages|pipeline|buffers", "stages"),
        (r"unroll|^kwi$", "unroll"),
        (r"^vec|vector|_vec$|^vw[mn]?$", "vector"),
        (r"split|algo|persistent|version|variant|^source$|^method$", "algorithm"),
        (
            r"block|tile|chunk|^thread_[mnk]$|^[mnk]wg$|^[bt][mnkhcdtvr]\d?$|_b[mnk]$|items|per_?thread|pixels|features",
            "tile",
        ),
        (r"^(use|has|is|enable|allow)_|padding|read_only|^s[ab]$|^str[mn]$", "flag"),
    )
)

_WARPS = re.compile(r"warps", re.IGNORECASE)
_BLOCK_SIZE = re.compile(r"block_?size", re.IGNORECASE)
_DEPTH = re.compile(r"^k(_|\d|wg|tile|block|$)|(?<!bloc)(?<!chun)k\d?$", re.IGNORECASE)


def role_of_name(name: str) -> str | None:
    """The role, out of `core.space.ROLES`, that a knob of this name most often has; None if the name tells nothing."""
    return next((role for pattern, role in _ROLE_BY_NAME if pattern.search(name)), None)


def roles_by_name(knobs: Iterable[str]) -> dict[str, str]:
    """The roles of those knobs whose names tell one, each seen beside the others."""
    roles = {name: role for name in knobs if (role := role_of_name(name)) is not None}
    if any(_WARPS.search(name) for name in roles):
        # Where warps are counted, the size of a block is one of elements: so Triton's kernels name it.
        roles |= {name: "tile" for name in roles if _BLOCK_SIZE.search(name) and not _WARPS.search(name)}
    return roles


def is_depth(name: str) -> bool:
    """Whether a tile of this name lies along the axis that a product sums over, which makes no output."""
    return _DEPTH.search(name) is not None
