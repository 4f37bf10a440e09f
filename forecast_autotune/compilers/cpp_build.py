"""Building one variant, in a worker process: kernels alone, then the extension by torch's own `load_inline`.

What makes a second variant cheap: a *slot* is a folder in which torch builds one variant after another, so that ninja
compiles again only what changed. The binding, with torch's headers (27 s here), is compiled once per slot; a variant
whose knobs stand in `kernel_sources` or `cuda_sources` costs that file and a link.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from ..processes.channel import Channel
from ..processes.file_lock import file_lock
from ..processes.machine import give_way
from ..processes.serving import redirect_output
from .cpp_headers import drop_outdated_objects, header_digests, keep_headers, read_by_compiler, read_by_ninja
from .cpp_recipe import headers_digest, words_of

BEGUN = "begun.json"  # in a slot while something is built there: what it held before


def build(channel: Channel, request: dict[str, Any]) -> None:
    """Build the variant described in `request["folder"]/request.json`; answers when the result stands there.

    It gives way to other processes by `request["nice"]`.

    Tells when it waits for the slot and when it has it, since waiting for another build is not building.
    """
    folder = Path(request["folder"])
    plan = json.loads((folder / "request.json").read_text())
    if request["nice"]:
        give_way(request["nice"])
    os.umask(0o077)  # what is built will be loaded: it is this user's alone
    redirect_output(str(folder / "build.log"))
    temporary = folder / "tmp"
    # A compiler that is killed leaves temporary files behind. They lie in this folder, which the next build empties.
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    os.environ["TMPDIR"] = str(temporary)
    began, began_ns = time.perf_counter(), time.time_ns()
    objects = [_compile_kernel(plan, folder, i, text) for i, text in enumerate(plan["kernel"])]
    alone = header_digests(
        [name for o in objects for name in read_by_compiler(o.with_suffix(".d"))],
        not_in=[folder], folders=plan["include_folders"], began_ns=began_ns,
    )  # fmt: skip
    library, headers = _build_with_torch(channel, plan, Path(plan["slot"]), folder, objects)
    shutil.rmtree(temporary, ignore_errors=True)
    channel.send(
        {
            "library": str(library),
            "compile_s": time.perf_counter() - began,
            "code_bytes": _code_bytes([str(o) for o in objects] or [str(library)]),
            "headers": {**headers, **alone},
        }
    )


def _compile_kernel(plan: dict[str, Any], folder: Path, index: int, text: str) -> Path:
    """Compile one kernel source by itself, with the knobs as macros and no header of torch's."""
    source = folder / f"kernel_{index}.cpp"
    source.write_text(text)
    target = source.with_suffix(".o")
    includes = [f"-I{path}" for path in plan["arguments"].get("extra_include_paths") or []]
    torch_flags = words_of(plan["arguments"].get("extra_cflags") or [])
    flags = ["-fPIC", *_unique_flags(plan["compiler"]), *torch_flags, *plan["defines"], *plan["flags"], *includes]
    noted = ["-MMD", "-MF", str(source.with_suffix(".d"))]
    command = [*plan["compiler"].split(), "-c", str(source), "-o", str(target), *flags, *noted]
    print(" ".join(command), flush=True)
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return target


def _unique_flags(compiler: str) -> list[str]:
    """Flags that keep one variant's variables apart from another's in the same process.

    GCC gives variables inside inline functions and templates one address in the whole process, even across libraries
    that are loaded privately: a second variant would see the first one's constants.
    """
    try:
        version = subprocess.run([*compiler.split(), "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:  # nvcc may be told a folder of compilers
        return []
    return ["-fno-gnu-unique"] if "Free Software Foundation" in version else []


def _compiler_below_nvcc(words: list[str]) -> str:
    """What nvcc has compile host code: what flags name, else torch's choice, else the environment's, else nvcc's own."""
    named = re.search(r"(?:^|\n)(?:-ccbin|--compiler-bindir)[=\n](.+)", "\n".join(words))
    return named[1] if named else os.environ.get("CC") or os.environ.get("NVCC_CCBIN") or "g++"


def _build_with_torch(
    channel: Channel, plan: dict[str, Any], slot: Path, folder: Path, objects: list[Path]
) -> tuple[Path, dict[str, str]]:
    """Have torch build the extension in the slot, and move it to the variant's own folder; with the headers it has read."""
    import torch.utils.cpp_extension as cpp_extension

    arguments = _arguments_of_torch(plan, objects)
    slot.mkdir(parents=True, exist_ok=True)
    channel.send({"waiting": True})
    with file_lock(slot / "slot.lock"):
        channel.send({"waiting": False})
        # torch's own lock is a file that a killed build leaves behind, and that later builds wait for without end.
        # This process holds the slot's lock, so whoever made torch's is gone.
        (slot / "lock").unlink(missing_ok=True)
        _drop_what_was_cut_off(slot)
        reached = headers_digest(plan["torchs_text"], plan["include_folders"])  # as they are now that the slot is ours
        drop_outdated_objects(slot, reached)
        began_ns = time.time_ns()
        _announce_loading(channel)
        cpp_extension.load_inline(
            name=plan["name"],
            cpp_sources=list(plan["cpp"]),
            cuda_sources=list(plan["cuda"]) or None,
            functions=plan["functions"],
            build_directory=str(slot),
            is_python_module=plan["is_python_module"],
            **arguments,
        )
        built = next(path for path in slot.iterdir() if path.suffix in (".so", ".pyd"))
        headers = header_digests(read_by_ninja(slot), not_in=[slot], folders=plan["include_folders"], began_ns=began_ns)
        keep_headers(slot, headers, reached)
        os.replace(built, folder / built.name)  # under the lock: the next build of this slot writes to the same name
        (slot / BEGUN).unlink()
    return folder / built.name, headers


def _arguments_of_torch(plan: dict[str, Any], objects: list[Path]) -> dict[str, Any]:
    """The caller's arguments of `load_inline`, with the knobs among the flags and the kernels' objects to link."""
    arguments = dict(plan["arguments"])
    knobs = [*plan["defines"], *plan["flags"]]
    alone = bool(objects or plan["cuda"])  # the knobs' own code is compiled apart from the binding
    arguments["extra_cflags"] = [
        *_unique_flags(plan["compiler"]),
        *(arguments.get("extra_cflags") or []),
        *(plan["defines"] if alone and plan["binding_has_knobs"] else [] if alone else knobs),
    ]
    if plan["cuda"]:
        given = arguments.get("extra_cuda_cflags") or []
        for_host = [
            word for flag in _unique_flags(_compiler_below_nvcc(words_of(given))) for word in ("-Xcompiler", flag)
        ]
        arguments["extra_cuda_cflags"] = [*for_host, *given, *knobs]
    arguments["extra_ldflags"] = [*map(str, objects), *(arguments.get("extra_ldflags") or [])]
    return arguments


def _announce_loading(channel: Channel) -> None:
    """Have torch say when it loads what it has built, as it does to see whether it can: that may crash or hang.

    The function is private to torch: without it, the load counts as a part of the build.
    """
    import torch.utils.cpp_extension as cpp_extension

    if load := getattr(cpp_extension, "_import_module_from_library", None):

        def loaded(*given: Any, **named: Any) -> Any:
            channel.send({"loading": True})
            return load(*given, **named)

        cpp_extension._import_module_from_library = loaded


def _drop_what_was_cut_off(slot: Path) -> None:
    """Remove what a build that was killed wrote to its slot, and note what is there before the next one.

    If ninja is killed while a compiler runs, its log still names the previous command. The next build would then reuse an
    object that is cut short, or another variant's.
    """
    outputs = {path.name: path.stat() for path in slot.iterdir() if path.suffix in (".o", ".so", ".pyd")}
    there = {name: [status.st_mtime_ns, status.st_size, status.st_ino] for name, status in outputs.items()}
    try:
        before = json.loads((slot / BEGUN).read_text())
        doubtful = [name for name, facts in there.items() if before.get(name) != facts]
    except FileNotFoundError:
        doubtful = []  # the last build came to its end
    except (OSError, ValueError, AttributeError):
        doubtful = list(there)
    for name in doubtful:
        (slot / name).unlink()
        del there[name]
    (slot / BEGUN).write_text(json.dumps(there))


def _code_bytes(paths: list[str]) -> int | None:
    """Bytes of machine code in some objects, as binutils' `size` counts them; None where that is missing."""
    try:
        table = subprocess.run(["size", *paths], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return sum(int(m[1]) for m in re.finditer(r"^\s*(\d+)\s+\d+\s+\d+", table, re.MULTILINE))
