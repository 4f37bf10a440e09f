"""What a candidate's text may not do, read off before it is built: call a library in place of computing.

No boundary: that is the box. These rules keep a search from finding what nobody asked for, such as the reference itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import lru_cache

from .candidate import Candidate
from .nvcc_flags import KNOWN, flags_of
from .task import SearchTask

_KNOWN_HEADERS = """
algorithm array atomic bit cassert cfloat climits cmath complex concepts cstddef cstdint cstdlib cstring functional
initializer_list iterator limits memory new numeric span stddef.h stdint.h string.h math.h tuple type_traits utility vector
immintrin.h emmintrin.h xmmintrin.h smmintrin.h tmmintrin.h nmmintrin.h x86intrin.h arm_neon.h arm_sve.h
"""
_HEADERS = frozenset(_KNOWN_HEADERS.split())
"""Of C++: for computing, not for files, threads, processes or clocks."""
_CUDA_HEADERS = re.compile(
    r"(?:cuda|cuda_runtime|cuda_runtime_api|cuda_(?:fp|bf)\w+|cuda_pipeline|cuda_awbarrier|device_launch_parameters|mma|"
    r"math_constants|vector_types|vector_functions|cooperative_groups(?:/\w+)?)\.h|cuda/(?:std/)?\w+"
)
"""Of CUDA: what comes with the compiler, but for libraries that launch kernels of their own."""
_CUDA_CALLS = re.compile(
    r"\b(?:(?:torch|at|c10|cub|thrust|cutlass|cute)\s*::\s*\w+(?:\s*::\s*\w+)*|"
    r"(?:cublas|cudnn|cusparse|cusolver|cufft|curand|cutensor|nvrtc|nccl|nvjpeg|npp)\w*|cu(?:Module|Launch|Link|Mem|Ctx)\w+|"
    r"cuda(?:Malloc|Free|Host|Ipc|Graph|Event|Stream|Launch(?!Kernel)|Set(?!Attribute)|User|External|Import)\w+|"
    r"cuda(?:Device|Thread)(?:Synchronize|Reset|SetLimit))"
)
_INCLUDE = re.compile(r"^\s*#\s*(?:include|include_next|import|embed)\s*[<\"]?([^>\"\n]+)", re.MULTILINE)
_CALLS = re.compile(
    r"\b(?:dlopen|dlsym|dlmopen|system|popen|fork|vfork|clone|exec[lv]p?e?|syscall|fopen|open|mmap|socket|pthread_create|"
    r"clock_gettime|gettimeofday|rdtsc\w*|signal|sigaction|setitimer|getenv|cblas_\w+|"
    r"[sdch]gemm_?|__attribute__\s*\(\(\s*"
    r"(?:constructor|destructor))\b"
)
_THREADS = re.compile(r"\b(?:j?thread|async)\b")
_CUDA_THREADS = re.compile(r"\bstd\s*::\s*(?:j?thread|async)\b|\busing\s+namespace\s+std\b")
"""There a thread is also what a kernel has many of."""
_ALLOCATION = frozenset({"empty", "empty_like", "empty_strided", "zeros", "zeros_like", "Tensor", "cuda", "version"})
_MODULES = frozenset({"__future__", "math", "typing", "triton", "torch"})
_BUILTINS = frozenset(
    {
        "open",
        "exec",
        "eval",
        "compile",
        "__import__",
        "globals",
        "locals",
        "vars",
        "getattr",
        "setattr",
        "input",
        "breakpoint",
    }
)


def broken_rule(candidate: Candidate, task: SearchTask) -> str:
    """The rule that a candidate's text breaks, for which it is not even built; empty where it may be."""
    source = task.text_of(candidate.variant)
    if len(candidate.source) > 8 * len(source) + 20_000:
        return f"its text of {len(candidate.source):,} characters is far longer than the task's own"
    if candidate.language == "triton":
        return _of_python(candidate.source, source)
    own, mine = set(_INCLUDE.findall(source)), set(_INCLUDE.findall(candidate.source))
    if strange := sorted(header.strip() for header in mine - own if not _is_known(header.strip(), candidate.language)):
        return f"it includes {strange[0]!r}, which neither the task's source does nor a kernel needs"
    if more := sorted(_calls(candidate.source, candidate.language) - _calls(source, candidate.language)):
        return f"it uses {more[0]!r}, which the task's source does not"
    if flags := [flag for flag in flags_of(candidate.source) if flag not in KNOWN]:
        return f"it asks nvcc for {flags[0]!r}, which is none of the flags that keep arithmetic as it is"
    return ""


def _is_known(header: str, language: str) -> bool:
    return header in _HEADERS or (language == "cuda" and _CUDA_HEADERS.fullmatch(header) is not None)


def _calls(source: str, language: str) -> set[str]:
    """What a text uses of the system and of libraries."""
    patterns = (_CALLS, _CUDA_CALLS, _CUDA_THREADS) if language == "cuda" else (_CALLS, _THREADS)
    return {" ".join(call.split()) for pattern in patterns for call in pattern.findall(source)}


def _of_python(source: str, own: str) -> str:
    try:
        mine = _facts(source)
    except (SyntaxError, ValueError, RecursionError) as err:
        return f"it cannot be parsed: {err}"
    its = _facts(own)
    for what, allowed in (
        ("import", _MODULES),
        ("torch", _ALLOCATION),
        ("builtin", frozenset()),
        ("form", frozenset()),
    ):
        if more := sorted(mine[what] - its[what] - allowed):
            words = {"import": "imports", "torch": "uses torch's", "builtin": "uses", "form": "has"}[what]
            return f"it {words} {more[0]!r}, which the task's source does not"
    return ""


@lru_cache(maxsize=256)  # most candidates differ from others in their knobs alone
def _facts(source: str) -> Mapping[str, set[str]]:
    """What a module imports, uses of torch and of dangerous builtins, and forms that hide errors."""
    tree = ast.parse(source)
    facts: dict[str, set[str]] = {"import": set(), "torch": set(), "builtin": set(), "form": set()}
    of_torch = _names_of_torch(tree)
    with_attribute = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            facts["import"] |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            facts["import"].add("." * node.level + (node.module or ""))
            if node.module == "torch":
                facts["torch"] |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and _root(node) in of_torch:
            facts["torch"].add(f"{of_torch[_root(node)]}.{_path(node)}".lstrip("."))
        elif isinstance(node, ast.Name) and of_torch.get(node.id) == "" and id(node) not in with_attribute:
            facts["form"].add("another name for torch")
        elif isinstance(node, ast.Name) and node.id in _BUILTINS:
            facts["builtin"].add(node.id)
        elif isinstance(node, ast.Attribute) and node.attr.startswith("__"):
            facts["builtin"].add(node.attr)
        elif isinstance(node, (ast.Try, ast.Global, ast.Nonlocal, ast.ClassDef)):
            facts["form"].add(type(node).__name__.lower())
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            facts["form"].add("@")
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("data_ptr", "copy_", "set_")
        ):
            facts["form"].add(node.func.attr)
    return facts


def _names_of_torch(tree: ast.Module) -> dict[str, str]:
    """The names that imports bind to torch and what is in it, each with its path there; that of torch itself is empty."""
    names = {"torch": ""}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.asname: a.name.partition(".")[2] for a in node.names if a.asname and _is_torch(a.name)}
        elif isinstance(node, ast.ImportFrom) and _is_torch(node.module or ""):
            within = (node.module or "").partition(".")[2]
            names |= {a.asname or a.name: f"{within}.{a.name}".lstrip(".") for a in node.names}
    return names


def _is_torch(module: str) -> bool:
    return module.partition(".")[0] == "torch"


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _path(node: ast.Attribute) -> str:
    return f"{_path(node.value)}.{node.attr}" if isinstance(node.value, ast.Attribute) else node.attr
