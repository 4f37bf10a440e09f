"""Flags of nvcc that a candidate in CUDA asks for, in lines of its text: none of them asks for other arithmetic.

    #pragma nvcc_flags -Xptxas -dlcm=cg

nvcc itself knows no such line: it is read and taken out when a candidate is built, and who adopts one gives the flags to
`extra_cuda_cflags`.
"""

from __future__ import annotations

import re

FLAGS = {
    "default_load_cache": {how: f"-Xptxas -dlcm={how}" for how in ("ca", "cg", "cs")},
    "default_store_cache": {how: f"-Xptxas -dscm={how}" for how in ("cg", "cs", "wt")},
    "most_registers": {str(n): f"--maxrregcount={n}" for n in (32, 64, 96, 128, 168, 255)},
    "register_usage": {str(n): f"-Xptxas --register-usage-level={n}" for n in (0, 2, 8, 10)},
    "ptxas_level": {str(n): f"-Xptxas -O{n}" for n in (1, 2)},
    "no_aliases": {"on": "-restrict"},
}
"""What each is about, how it may be set, and the flag."""

KNOWN = frozenset(flag for values in FLAGS.values() for flag in values.values())
_LINE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+nvcc_flags\b([^\n]*)\n?", re.MULTILINE)


def flags_of(source: str) -> list[str]:
    """The flags that a text asks for, each as it is written."""
    return [" ".join(match[1].split()) for match in _LINE.finditer(source)]


def without_flags(source: str) -> str:
    """The text without the lines that ask for flags."""
    return _LINE.sub("", source)


def with_flag(source: str, about: str, flag: str) -> str:
    """The text with a flag asked for, in place of another one about the same; with an empty flag, without one."""
    others = FLAGS[about].values()
    text = _LINE.sub(lambda match: "" if " ".join(match[1].split()) in others else match[0], source)
    return f"#pragma nvcc_flags {flag}\n{text}" if flag else text
