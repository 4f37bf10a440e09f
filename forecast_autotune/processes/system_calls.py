"""Landlock, seccomp and capabilities by their system calls: what a box is closed with. Linux on x86-64 and arm64 alone."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence

_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""What seccomp calls each machine, and its column in `_NUMBERS`."""

_TABLE = """
accept:43:202 accept4:288:242 acct:163:89 add_key:248:217 adjtimex:159:171 bind:49:200 bpf:321:280 capset:126:91 chmod:90:-1
chown:92:-1 chroot:161:51 clock_adjtime:305:266 clock_settime:227:112 clone:56:220 clone3:435:435
connect:42:203 delete_module:176:106 execve:59:221 execveat:322:281 fanotify_init:300:262
fchmod:91:52 fchmodat:268:53 fchmodat2:452:452 fchown:93:55 fchownat:260:54 finit_module:313:273
fork:57:-1 fremovexattr:199:16 fsconfig:431:431 fsetxattr:190:7 fsmount:432:432 fsopen:430:430
fspick:433:433 futimesat:261:-1 init_module:175:105 inotify_add_watch:254:27 io_uring_enter:426:426
io_uring_register:427:427 io_uring_setup:425:425 ioperm:173:-1 iopl:172:-1 ioprio_set:251:30
kcmp:312:272 kexec_file_load:320:294 kexec_load:246:104 keyctl:250:219 kill:62:129 lchown:94:-1
listen:50:201 lremovexattr:198:15 lsetxattr:189:6 migrate_pages:256:238 mknod:133:-1 mknodat:259:33
mount:165:40 mount_setattr:442:442 move_mount:429:429 move_pages:279:239 mq_open:240:180
msgctl:71:187 msgget:68:186 msgrcv:70:188 msgsnd:69:189 name_to_handle_at:303:264
open_by_handle_at:304:265 open_tree:428:428 perf_event_open:298:241 personality:135:92
pidfd_getfd:438:438 pidfd_send_signal:424:424 pivot_root:155:41 prctl:157:167 prlimit64:302:261
process_madvise:440:440 process_mrelease:448:448 process_vm_readv:310:270 process_vm_writev:311:271
ptrace:101:117 quotactl:179:60 quotactl_fd:443:443 reboot:169:142 removexattr:197:14
request_key:249:218 rt_sigqueueinfo:129:138 rt_tgsigqueueinfo:297:240 sched_setaffinity:203:122
sched_setattr:314:274 sched_setparam:142:118 sched_setscheduler:144:119 seccomp:317:277
semctl:66:191 semget:64:190 semop:65:193 semtimedop:220:192 sendto:44:206 setdomainname:171:162
setgid:106:144 setgroups:116:159 sethostname:170:161 setns:308:268 setpgid:109:154
setpriority:141:140 setregid:114:143 setresgid:119:149 setresuid:117:147 setreuid:113:145
setsid:112:157 settimeofday:164:170 setuid:105:146 setxattr:188:5 shmat:30:196 shmctl:31:195
shmget:29:194 socket:41:198 socketpair:53:199 swapoff:168:225 swapon:167:224 syslog:103:116
tgkill:234:131 tkill:200:130 truncate:76:45 umount2:166:39 unshare:272:97 userfaultfd:323:282
utime:132:-1 utimensat:280:88 utimes:235:-1 vfork:58:-1 vhangup:153:58
"""
"""Name, number on x86-64, number on arm64; -1 where there is none (asm/unistd_64.h, asm-generic/unistd.h)."""

_NUMBERS = {name: (int(x86), int(arm)) for name, x86, arm in (entry.split(":") for entry in _TABLE.split())}
_LAST = 462  # mseal, Linux 6.10: what came later is refused as unknown

_X32 = 0x40000000  # system calls of x32 have this bit, and other numbers
_LOAD, _JUMP, _EQUAL, _GREATER, _AND, _RETURN = 0x20, 0x05, 0x15, 0x25, 0x54, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_CLONE_THREAD = 0x00010000
_AF_UNIX, _SOCK_STREAM, _SOCK_SEQPACKET, _KINDS_OF_SOCKET = 1, 1, 5, 0xF
_NEW_NAMESPACES = 0x7E020000  # flags of clone
_NEW_MOUNTS, _RECURSIVE_PRIVATE, _NO_SUID_DEV_EXEC = 0x00020000, 0x44000, 0xE  # of unshare and mount
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 4, 22, 24
_PR_SET_MM, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 35, 36, 38

_CLOSED = """
ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd pidfd_send_signal userfaultfd
connect accept accept4 bind listen io_uring_setup io_uring_enter io_uring_register
unshare setns mount umount2 pivot_root chroot move_mount fsopen fsmount fsconfig fspick open_tree mount_setattr
bpf perf_event_open keyctl add_key request_key seccomp personality fanotify_init inotify_add_watch syslog acct vhangup
kexec_load kexec_file_load init_module finit_module delete_module iopl ioperm reboot swapon swapoff
sethostname setdomainname quotactl quotactl_fd settimeofday clock_settime clock_adjtime adjtimex
open_by_handle_at name_to_handle_at mknod mknodat truncate
shmget shmat shmctl msgget msgsnd msgrcv msgctl semget semop semctl semtimedop mq_open
setsid setpgid setpriority ioprio_set sched_setscheduler sched_setparam sched_setattr move_pages migrate_pages
setuid setgid setreuid setregid setresuid setresgid setgroups capset rt_sigqueueinfo rt_tgsigqueueinfo
chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes utimensat futimesat
setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr
"""
"""System calls that nothing in a box makes. Landlock knows nothing of modes, owners, times and attributes of files; and
io_uring makes the others' calls where no filter sees them."""

_LISTENING = ("bind", "listen")


class SystemLacksError(Exception):
    """The system cannot do what was asked; the message says what it lacks."""


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def machine() -> tuple[int, int]:
    """What seccomp calls this machine, and its column in the table of numbers.

    Raises:
        SystemLacksError: neither Linux nor a machine whose system calls are known here.
    """
    name = platform.machine()
    if platform.system() != "Linux" or name not in _MACHINES:
        raise SystemLacksError(f"Linux on {' or '.join(_MACHINES)}: this is {platform.system()} on {name}")
    return _MACHINES[name]


def prctl(option: int, *arguments: int) -> None:
    """One `prctl`.

    Raises:
        OSError: it is refused.
    """
    given = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    if _libc().prctl(ctypes.c_int(option), *given):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def gain_no_privileges() -> None:
    """From here on, this process and its children gain nothing by starting a program; seccomp and Landlock ask for it."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def stay_visible() -> None:
    """Let this process go on reading what /proc tells of it, after a change of user."""
    prctl(_PR_SET_DUMPABLE, 1)


def drop_capabilities() -> None:
    """Give up every capability for good, also those of root."""
    with_bound = 0
    while with_bound < 64:
        try:
            prctl(_PR_CAPBSET_DROP, with_bound)
        except OSError:
            break  # past the last, or no right to: then there is none to give up
        with_bound += 1
    header = struct.pack("Ii", 0x20080522, 0)  # version 3, this process
    if _libc().capset(header, struct.pack("6I", *[0] * 6)):
        raise OSError(ctypes.get_errno(), "capabilities cannot be given up")


def mount_own_proc() -> None:
    """Have /proc show the process-id namespace of this process, for it and its children alone.

    Nothing is changed where that is refused, as by a container that masks parts of its /proc.
    """
    libc = _libc()
    if libc.unshare(_NEW_MOUNTS) or libc.mount(b"none", b"/", None, ctypes.c_ulong(_RECURSIVE_PRIVATE), None):
        return
    libc.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(_NO_SUID_DEV_EXEC), None)


# Landlock ------------------------------------------------------------------------------------------------------------

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on all machines
_EXECUTE, _WRITE, _READ, _LIST = 1, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_TCP = 3  # bind and connect, from version 4
_SCOPES = 3  # abstract sockets and signals, from version 6
SCOPES_FROM = 6


def landlock_version() -> int:
    """The version of Landlock's interface; 0 where there is none."""
    version: int = _libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    return max(0, version)


def restrict_files(
    *, writable: Sequence[str], readable: Sequence[str], devices: Sequence[str], rewritable: Sequence[str] = ()
) -> None:
    """Leave this process, for good, these places of the file system alone; and no TCP, where Landlock knows of that.

    Args:
        writable: folders in which anything may be done but starting programs.
        readable: files and folders to read, list and run; those that are missing are passed over.
        devices: files to read, write and control.
        rewritable: folders whose files may be read and written; none is made or removed there.
    Raises:
        SystemLacksError: there is no Landlock.
    """
    version, libc = landlock_version(), _libc()
    if not version:
        raise SystemLacksError("Landlock (Linux 5.13 or later with landlock among its security modules)")
    rights = _RIGHTS[min(version, 5)]
    attributes = struct.pack("QQQ", rights, _TCP if version >= 4 else 0, _SCOPES if version >= SCOPES_FROM else 0)
    size = 24 if version >= SCOPES_FROM else 16 if version >= 4 else 8
    ruleset = libc.syscall(_CREATE_RULESET, attributes[:size], ctypes.c_size_t(size), 0)
    if ruleset < 0:
        raise SystemLacksError(f"Landlock: {os.strerror(ctypes.get_errno())}")
    try:
        places = [
            *((path, rights & ~_EXECUTE) for path in writable),
            *((path, _EXECUTE | _READ | _LIST) for path in readable),
            *((path, _READ | _WRITE | _IOCTL) for path in devices),
            *((path, _READ | _LIST | _WRITE | _TRUNCATE) for path in rewritable),
        ]
        for path, allowed in places:
            try:
                place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                kept = allowed & rights if os.path.isdir(path) else allowed & rights & _OF_FILES
                if libc.syscall(_ADD_RULE, ruleset, 1, struct.pack("=Qi", kept, place), 0):
                    raise SystemLacksError(f"Landlock takes no rule for {path}: {os.strerror(ctypes.get_errno())}")
            finally:
                os.close(place)
        if libc.syscall(_RESTRICT_SELF, ruleset, 0):
            raise SystemLacksError(f"Landlock: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(ruleset)


# seccomp -------------------------------------------------------------------------------------------------------------


class _Filter:
    """A filter program as it grows; the number of the system call is loaded before each rule."""

    def __init__(self, architecture: int, column: int) -> None:
        self._column = column
        self.code: list[bytes] = []
        self._add(_LOAD, 4)
        self._add(_EQUAL, architecture, 1, 0)
        self._add(_RETURN, _KILL)  # called as another machine's, such as i386's by int 0x80
        self._add(_LOAD, 0)
        self._add(_GREATER, _X32 - 1, 0, 1)
        self._add(_RETURN, _ERROR | errno.EPERM)
        self._add(_GREATER, _LAST, 0, 1)
        self._add(_RETURN, _ERROR | errno.ENOSYS)

    def _add(self, code: int, value: int, if_true: int = 0, if_false: int = 0) -> None:
        self.code.append(struct.pack("HBBI", code, if_true, if_false, value & 0xFFFFFFFF))

    def refuse(self, name: str, number: int = errno.EPERM) -> None:
        """Refuse a system call whatever its arguments."""
        if (call := _NUMBERS[name][self._column]) >= 0:
            self._add(_EQUAL, call, 0, 1)
            self._add(_RETURN, _ERROR | number)

    def only(self, name: str, argument: int, values: Sequence[int], *, mask: int = 0xFFFFFFFF) -> None:
        """Refuse a system call unless the lower half of an argument, masked, is one of these values."""
        if (call := _NUMBERS[name][self._column]) < 0:
            return
        self._add(_EQUAL, call, 0, len(values) + 4)
        self._add(_LOAD, 16 + 8 * argument)
        self._add(_AND, mask)
        for i, value in enumerate(values):
            self._add(_EQUAL, value, len(values) - i, 0)
        self._add(_RETURN, _ERROR | errno.EPERM)
        self._add(_LOAD, 0)

    def never(self, name: str, argument: int, values: Sequence[int]) -> None:
        """Refuse a system call where the lower half of an argument is one of these values."""
        if (call := _NUMBERS[name][self._column]) < 0:
            return
        self._add(_EQUAL, call, 0, len(values) + 4)
        self._add(_LOAD, 16 + 8 * argument)
        for i, value in enumerate(values):
            self._add(_EQUAL, value, len(values) - i, 0)
        self._add(_JUMP, 1)
        self._add(_RETURN, _ERROR | errno.EPERM)
        self._add(_LOAD, 0)

    def install(self) -> None:
        """Put it in force for this process and its children.

        Raises:
            SystemLacksError: the system has no seccomp.
        """
        self._add(_RETURN, _ALLOW)
        program = b"".join(self.code)
        kept = ctypes.create_string_buffer(program, len(program))
        given = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(self.code), ctypes.addressof(kept)))
        try:
            prctl(_PR_SET_SECCOMP, 2, ctypes.addressof(given))
        except OSError as err:
            raise SystemLacksError(f"seccomp filters (CONFIG_SECCOMP_FILTER): {err}") from None


def restrict_calls(*, may_start: bool, unix_sockets: bool) -> None:
    """Leave this process, for good, no network, no signal to others and no way to others' memory, mounts and keys.

    Args:
        may_start: it may start programs. Otherwise it starts no process at all, and threads alone.
        unix_sockets: it may make sockets of the machine's own and listen, as the CUDA driver does; it connects to none and
            accepts nobody.
    Raises:
        SystemLacksError: there is no seccomp, or not for this machine.
    """
    rules = _Filter(*machine())
    for name in _CLOSED.split():
        if not (unix_sockets and name in _LISTENING):
            rules.refuse(name)
    rules.only("prlimit64", 0, [0])
    rules.only("sched_setaffinity", 0, [0, os.getpid()])
    rules.only("sendto", 4, [0])  # to an address
    rules.never("prctl", 0, [_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_MM])
    rules.refuse("clone3", errno.ENOSYS)  # its flags lie in memory; libraries fall back on clone
    for name in ("socket", "socketpair"):
        if unix_sockets:  # none of datagrams, which can be sent to any socket that has a path
            rules.only(name, 0, [_AF_UNIX])
            rules.only(name, 1, [_SOCK_STREAM, _SOCK_SEQPACKET], mask=_KINDS_OF_SOCKET)
        else:
            rules.refuse(name)
    if may_start:
        rules.only("clone", 0, [0], mask=_NEW_NAMESPACES)  # no namespace
    else:
        for name in ("fork", "vfork", "execve", "execveat"):
            rules.refuse(name)
        rules.only("clone", 0, [_CLONE_THREAD], mask=_CLONE_THREAD | _NEW_NAMESPACES)
        for name in ("kill", "tgkill"):
            rules.only(name, 0, [os.getpid()])
        rules.refuse("tkill")
    rules.install()
