"""What a box for a GPU leaves open beside any other's: what NVIDIA's driver does as it starts, and no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forecast_autotune.processes.box import lacking, start_cuda
from forecast_autotune.processes.system_calls import SystemLacksError

pytestmark = pytest.mark.skipif(bool(lacking()), reason=f"no box here: {lacking()}")

PROGRAM = """
import json, os, socket, sys, threading
from forecast_autotune.processes.box import Box, close_box

folder, outside, gpu, may_start = sys.argv[1:]
parent = os.getppid()
close_box(Box(folder=folder, gpu=gpu == "gpu", may_start=may_start == "starts"), [])
held = []

def named(path):
    with open(path, "w") as file:
        file.write("a name")

def listening(address):
    held.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    held[-1].bind(address)
    held[-1].listen()
    held[-1].setblocking(False)

def connected(address):
    socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(address)

acts = {
    "names its thread": lambda: named(f"/proc/self/task/{threading.get_native_id()}/comm"),
    "listens": lambda: listening(f"\\0cuda-uvmfd-{os.getpid()}"),
    "listens outside": lambda: listening(outside + "/socket"),
    "accepts": lambda: held[0].accept(),
    "connects to itself": lambda: connected(held[0].getsockname()),
    "connects to the machine": lambda: socket.socket().connect(("127.0.0.1", 80)),
    "names another's thread": lambda: named(f"/proc/{parent}/task/{parent}/comm"),
    "makes a file": lambda: named("/proc/self/task/mine"),
    "writes outside": lambda: named(outside + "/file"),
}
done = {}
for name, act in acts.items():
    try:
        act()
        done[name] = "done"
    except Exception as err:
        done[name] = type(err).__name__
print(json.dumps(done))
"""


@pytest.mark.parametrize("starts", ["alone", "starts"])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_gpus_box_lets_the_driver_start_and_nobody_out(device: str, starts: str, tmp_path: Path) -> None:
    if lacks := lacking(may_start=starts == "starts"):
        pytest.skip(f"no such box here: {lacks}")
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    words = [sys.executable, "-c", PROGRAM, str(inside), str(outside), device, starts]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    done = json.loads(ran.stdout)
    if (device, starts, done["names its thread"]) == ("gpu", "starts", "FileNotFoundError"):
        pytest.skip("a container that lets nobody mount /proc")
    opened = {name for name, how in done.items() if how == "done"}
    assert opened == ({"names its thread", "listens"} if device == "gpu" else set())
    wanted = ("listens outside", "connects to the machine", "names another's thread", "writes outside")
    assert {done[name] for name in wanted} <= {"PermissionError", "FileNotFoundError"}
    if device == "gpu":
        assert done["accepts"] == done["connects to itself"] == "PermissionError"
    assert not list(outside.iterdir())


@pytest.mark.skipif(bool(lacking(may_start=True)), reason=f"no box that may start programs: {lacking(may_start=True)}")
def test_a_compiler_that_lies_elsewhere_is_found_and_what_belongs_to_it(tmp_path: Path) -> None:
    inside, compiler = tmp_path / "inside", tmp_path / "opt" / "bin" / "gcc"
    inside.mkdir()
    compiler.parent.mkdir(parents=True)
    (tmp_path / "opt" / "part").write_text("what it reads")
    (tmp_path / "private").write_text("what nobody should")
    compiler.write_text("#!/bin/sh\ncat $(dirname $0)/../part")
    compiler.chmod(0o755)
    program = f"""
import subprocess, sys
from forecast_autotune.processes.box import Box, close_box
close_box(Box(folder={str(inside)!r}, may_start=True), [])
for words in (["gcc"], ["cat", {str(tmp_path / "private")!r}]):
    print(subprocess.run(words, capture_output=True, text=True).stdout)
"""
    environment = {"PATH": f"{compiler.parent}:/usr/bin:/bin"}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert ran.stdout.split("\n") == ["what it reads", "", ""], ran.stderr


LIMITED = """
import os
from forecast_autotune.processes import box

box._MAX_IDS = 20  # less than any kernel lets a namespace be held to, as 450 is where there are 64 CPUs
if not box._own_namespace():
    print("none")
elif child := os.fork():
    os.waitpid(child, 0)
else:
    print(box._limit_ids(), open("/proc/sys/kernel/pid_max").read(), flush=True)
    os._exit(0)
"""


def test_a_refused_limit_of_process_ids_becomes_the_least_that_is_allowed() -> None:
    ran = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout.split()
    if said == ["none"] or tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) < (6, 14):
        pytest.skip("no namespace with a limit of its own here")
    limited, most = said
    assert limited == "True"
    assert int(most) > 300  # what the kernel keeps for itself


@pytest.mark.parametrize(
    ("told", "raised"), [("CUDA error: out of memory", RuntimeError), ("CUDA error: 304", SystemLacksError)]
)
def test_a_device_whose_memory_others_hold_is_no_lack_of_the_system(
    monkeypatch: pytest.MonkeyPatch, told: str, raised: type[Exception]
) -> None:
    torch = pytest.importorskip("torch")

    def zeros(*_: object, **__: object) -> None:
        raise RuntimeError(told)

    monkeypatch.setattr(torch, "zeros", zeros)
    with pytest.raises(raised, match=told) as caught:
        start_cuda("cuda")
    assert type(caught.value) is raised
