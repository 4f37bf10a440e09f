"""A box for code that no person wrote: a worker that reaches one folder, no network and no other process.

What is not contained: a GPU's driver, to which whoever may launch kernels speaks; how long the processor, its caches and the
memory bus are kept busy; names, sizes and dates of files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
import site
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from ..errors import AutotuneError, NoBoxError
from . import system_calls
from .channel import Channel, Message
from .endings import WorkerDiedError, WorkerRaisedError, WorkerTimeoutError
from .fork_server import ForkServer
from .machine import process_ids, thread_ids
from .serving import children_of, signal_at_death_of_parent
from .system_calls import SystemLacksError

_SYSTEM = (
    "/usr",
    "/lib",
    "/lib64",
    "/bin",
    "/sbin",
    "/opt/rocm",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
)
_SYSTEM_FACTS = (
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/filesystems", "/proc/driver/nvidia", "/proc/sys/vm"),
    *("/proc/devices", "/proc/modules", "/proc/version", "/sys", "/etc/localtime"),
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_KEPT = (
    "PATH",
    "LD_LIBRARY_PATH",
    "LANG",
    "LC_ALL",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CXX",
    "CC",
    "TRITON_INTERPRET",
)
"""Variables of the environment that compilers and libraries are found by; everything else stays outside."""

_COMPILERS = ("gcc", "g++", "cc", "c++", "clang", "clang++", "ld", "as", "ninja", "nvcc")
TRITON_FOLDER = "triton"  # of a box's folder: where Triton keeps what it compiled
_NOBODY = 65534
_MAX_PROCESSES = 256  # that a box may hold: a compiler's pipeline takes a dozen
_MAX_IDS = 450  # of a namespace; threads take one each, and the kernel sets 300 aside
_ALL_IDS = 1 << 22  # that Linux can count
_WATCH_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """What a boxed worker may reach and take.

    `folder` may be written to. `readable` is added to the system's compilers and libraries; with `gpu`, so are NVIDIA's
    devices. `may_start` lets it start programs of the system, as a build does; without, it starts no process at all.
    """

    folder: str
    readable: tuple[str, ...] = ()
    gpu: bool = False
    may_start: bool = False
    memory_bytes: int = 8 << 30
    cpu_s: int = 600
    file_bytes: int = 1 << 30

    def as_json(self) -> dict[str, Any]:
        """What `from_json` reads it from."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Box:
        """The box that `as_json` wrote."""
        return cls(**{**value, "readable": tuple(value["readable"])})


def close_box(box: Box, kept: Sequence[int]) -> None:
    """Close the box around this process, for good. To be called with one thread, with all imported that is needed.

    Where it may start programs, this returns in another process, of a process-id namespace of its own, in which all
    ends with its first.

    Args:
        kept: descriptors that stay open, beside stdin, stdout and stderr.
    Raises:
        SystemLacksError: the system cannot; what was closed by then stays closed.
    """
    if len(os.listdir("/proc/self/task")) > 1:
        raise SystemLacksError("a process of one thread to begin with: a library has started others")
    _close_descriptors(kept)
    if box.may_start:
        _bound_processes(box.folder, own_proc=box.gpu)
    system_calls.gain_no_privileges()
    system_calls.drop_capabilities()
    _limit(box)
    try:
        os.chdir(box.folder)
    except OSError as err:
        raise SystemLacksError(
            f"a folder that user {os.geteuid()} may use ({err}): let FORECAST_AUTOTUNE_DIR name one"
        ) from None
    os.umask(0o077)
    os.environ.update(
        HOME=box.folder,
        TMPDIR=box.folder,
        TRITON_CACHE_DIR=os.path.join(box.folder, TRITON_FOLDER),
        TRITON_DISABLE_LINE_INFO="1",  # or a binary names the file that it came from, and no two programs come out alike
    )
    system_calls.restrict_files(
        writable=[box.folder],
        readable=[*_SYSTEM, *_SYSTEM_FACTS, *_libraries(), f"/proc/{os.getpid()}", "/proc/self", *box.readable],
        devices=[*_DEVICES, *(_gpu_devices() if box.gpu else ())],
        rewritable=["/proc/self/task"]
        if box.gpu
        else [],  # the CUDA driver names its threads there, or it does not start
    )
    system_calls.restrict_calls(may_start=box.may_start, unix_sockets=box.gpu)


def lacking(*, may_start: bool = False, gpu: bool = False) -> str:
    """What this system lacks for a box, found out by closing one around a worker; empty where it lacks nothing.

    With `gpu`, CUDA must start in it too.
    """
    return _lacking(may_start, gpu)


@cache
def _lacking(may_start: bool, gpu: bool) -> str:
    import tempfile

    try:
        system_calls.machine()
        with tempfile.TemporaryDirectory(prefix="forecast_autotune-box-") as folder:
            box = Box(folder=folder, may_start=may_start, gpu=gpu)
            with boxed_server().start(_try_box, {"box": box.as_json()}, environment={}) as worker:
                worker.receive(60.0)
    except (SystemLacksError, WorkerDiedError, WorkerRaisedError, WorkerTimeoutError, AutotuneError) as err:
        return str(err).removeprefix("SystemLacksError: ")
    return ""


def require_box(*, may_start: bool = False, gpu: bool = False) -> None:
    """Make sure that a box can be had here.

    Raises:
        NoBoxError: it cannot; nothing may be run then that needs one.
    """
    if lack := lacking(may_start=may_start, gpu=gpu):
        raise NoBoxError(
            f"code that no person wrote is run in a box alone, and this system has none to offer: it lacks {lack}. "
            "Search on a machine, or in a container, that has it"
        )


def boxed_server() -> ForkServer:
    """The fork server whose workers are boxed: it was started without the caller's environment."""
    return _boxed


def boxed_environment() -> dict[str, str]:
    """What of this process's environment a box may know: where compilers, libraries and devices are."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ}


def _try_box(channel: Channel, request: Message) -> None:
    """Close a box and look whether it holds. Runs in a worker."""
    box = Box.from_json(request["box"])
    close_box(box, [channel.fileno()])
    held = {
        "files outside the box closed": _refused(lambda: os.listdir("/root")) and _refused(lambda: os.listdir("/tmp")),  # noqa: S108
        "sockets refused": _refused(_make_socket),
        "signals to others refused": _refused(lambda: os.kill(os.getppid() or 1, 0)),
    }
    if open_ways := [what for what, closed in held.items() if not closed]:
        raise SystemLacksError(f"{', '.join(open_ways)}: a box was closed here, and does not hold")
    if box.gpu:
        start_cuda("cuda")
    channel.send({"closed": True})


def start_cuda(device: object) -> None:
    """Have CUDA start within the box that was closed around this process.

    Raises:
        SystemLacksError: it does not.
        RuntimeError: others hold all of the device's memory, which says nothing of the system.
    """
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as err:
        if "out of memory" in str(err):
            raise
        raise SystemLacksError(f"a CUDA driver that starts within a box ({str(err).splitlines()[0]})") from None


def _make_socket() -> None:
    import socket

    socket.socket().close()


def _refused(act: Any) -> bool:
    try:
        act()
    except OSError:
        return True
    return False


def _close_descriptors(kept: Sequence[int]) -> None:
    wanted = sorted({0, 1, 2, *kept})
    for low, high in zip(wanted, [*wanted[1:], 1 << 16], strict=True):
        os.closerange(low + 1, high)


def _limit(box: Box) -> None:
    limits = {
        resource.RLIMIT_DATA: box.memory_bytes,  # not of addresses: CUDA reserves them by the terabyte
        resource.RLIMIT_CPU: box.cpu_s,
        resource.RLIMIT_FSIZE: box.file_bytes,
        resource.RLIMIT_NOFILE: 1024,
        resource.RLIMIT_CORE: 0,
    }
    for limit, value in limits.items():
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


@cache
def _libraries() -> tuple[str, ...]:
    """Where this interpreter and its packages lie."""
    import forecast_autotune

    places = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values(), *site.getsitepackages()}
    places |= {str(Path(forecast_autotune.__file__).parent)}
    for name in ("torch", "triton", "numpy"):
        if file := getattr(sys.modules.get(name), "__file__", None):
            places.add(str(Path(file).parent.parent))
    if cuda := os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        places.add(cuda)
    places |= _compilers()
    return tuple(sorted(str(p) for p in places if str(Path(p).resolve()) not in ("/", str(Path.home()))))


def _compilers() -> set[str]:
    """Where the compilers lie that a build finds, and what belongs to them: all under the same folder."""
    named = (os.environ.get("CC"), os.environ.get("CXX"), *_COMPILERS)
    found = [Path(path) for name in named if name and (path := shutil.which(name))]
    folders = {each.parent for path in found for each in (path, path.resolve())}
    return {str(folder.parent if folder.name == "bin" else folder) for folder in folders}


def _gpu_devices() -> list[str]:
    return [str(path) for path in Path("/dev").glob("nvidia*") if not path.is_dir()] + [
        str(path) for path in Path("/dev/nvidia-caps").glob("*")
    ]


# Processes -----------------------------------------------------------------------------------------------------------


def _bound_processes(folder: str, *, own_proc: bool) -> None:
    """Bound how many processes this one can come to, keep it from others', and make sure that all end with it.

    Uses a process-id namespace where one can be had. It holds so many ids and no more (Linux 6.14). When there are too many,
    its first process is killed from outside and takes all others with it, however fast they fork. Nothing in it can name a
    process outside. Elsewhere by the user's limit of processes, which root ignores: root becomes another user.

    Args:
        own_proc: in a namespace, /proc shows that one's processes: libraries look there for threads by their number in it.

    Raises:
        SystemLacksError: there is no way to.
    """
    is_root = os.geteuid() == 0
    if not is_root:
        _limit_processes_of_user()
    if not _own_namespace():
        if is_root:
            _become_nobody(folder)
            _limit_processes_of_user()
        elif system_calls.landlock_version() < system_calls.SCOPES_FROM:
            raise SystemLacksError(
                "process-id namespaces, or Landlock's scope of signals (its version 6, Linux 6.12), for code that may "
                "start programs"
            )
        return
    read, write = os.pipe()
    if first := os.fork():
        os.close(write)
        bounded = os.read(read, 1) == b"1"
        if is_root and not bounded and not _ahead_of_all():
            os.kill(first, signal.SIGKILL)
            raise SystemLacksError(
                "a bound on the processes of root: neither process-id namespaces with a limit of their own (Linux 6.14) "
                "nor the right to watch one ahead of all others (CAP_SYS_NICE)"
            )
        _watch(first)
    signal_at_death_of_parent(signal.SIGKILL)
    os.write(write, b"1" if _limit_ids() else b"0")
    os.close(read)
    os.close(write)
    if own_proc:
        system_calls.mount_own_proc()
    if second := os.fork():  # the first of a namespace ignores most signals, so that it is no place for a candidate
        _end_as(os.waitpid(second, 0)[1])
    signal_at_death_of_parent(signal.SIGKILL)


def _become_nobody(folder: str) -> None:
    """Go on as a user whose processes are bounded, in a container that lets root make no namespaces.

    Raises:
        SystemLacksError: this root may not do that either.
    """
    try:
        for place in (folder, *(str(path) for path in Path(folder).rglob("*"))):
            os.chown(place, _NOBODY, _NOBODY)
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    except OSError as err:
        raise SystemLacksError(
            f"a bound on the processes of root: process-id namespaces are refused, and so is another user ({err}): run as "
            "another user, or allow either"
        ) from None
    system_calls.stay_visible()
    signal_at_death_of_parent(signal.SIGKILL)  # a change of user has undone it


def _limit_processes_of_user() -> None:
    own = sum(1 for pid in process_ids() for thread in thread_ids(pid) if _owner(pid, thread) == os.geteuid())
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = own + _MAX_PROCESSES
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def _limit_ids() -> bool:
    """Let this namespace hold few process ids; False where limits are the whole system's.

    The kernel refuses a limit below eight ids for each CPU that the system may have: 512 where there are 64.
    """
    if tuple(int(n) for n in os.uname().release.split("-")[0].split(".")[:2]) < (6, 14):
        return False  # there is one limit then, and it is everybody's
    limit = _MAX_IDS
    while (refused := _refusal_of_ids(limit)) == errno.EINVAL and limit < _ALL_IDS:
        limit *= 2
    return not refused


def _refusal_of_ids(limit: int) -> int:
    """The number of the error that a limit of this namespace's process ids meets; 0 where it holds."""
    try:
        Path("/proc/sys/kernel/pid_max").write_text(str(limit))
    except OSError as err:
        return err.errno or errno.EPERM
    return 0


def _ahead_of_all() -> bool:
    """Have this process run whenever it wants to, whatever else does."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return False
    return True


def _own_namespace() -> bool:
    """Whether the children of this process will be in a process-id namespace of their own."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    new_user, new_pid = 0x10000000, 0x20000000
    user, group = os.geteuid(), os.getegid()
    if user == 0 and libc.unshare(new_pid) == 0:
        return True
    if libc.unshare(new_user | new_pid):
        return False
    # Without the mapping, files belong to nobody, and all is as it was but for names.
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return True


def _owner(pid: int, thread: int) -> int:
    with contextlib.suppress(OSError):  # it has ended since
        return os.stat(f"/proc/{pid}/task/{thread}").st_uid
    return -1


def _watch(first: int) -> NoReturn:
    """Wait for the first process of a namespace, end it where there are too many, and end as it did."""
    while True:
        ended, status = os.waitpid(first, os.WNOHANG)
        if ended:
            _end_as(status)
        if _too_many_below(first):
            os.write(2, f"more than {_MAX_PROCESSES} processes in a box: it was ended\n".encode())
            os.kill(first, signal.SIGKILL)
            os.waitpid(first, 0)
            os._exit(TOO_MANY)
        time.sleep(_WATCH_S)


def _too_many_below(pid: int) -> bool:
    """Whether a process has too many descendants; it is not gone on counting then."""
    seen, waiting = 0, [pid]
    while waiting and seen <= _MAX_PROCESSES:
        below = children_of(waiting.pop()) or set()
        seen += len(below)
        waiting += below
    return seen > _MAX_PROCESSES


TOO_MANY = 117
"""The exit code of a box that came to too many processes."""


def _end_as(status: int) -> NoReturn:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
        os._exit(128 - code)  # the first of a namespace is not ended by its own signals
    os._exit(code)


_boxed = ForkServer(f"{__package__}.boxed_imports", environment=boxed_environment())
