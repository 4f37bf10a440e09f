"""The wheel: what is in it, what it says of itself, and that it works where nothing else of the repository is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from configparser import ConfigParser
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath

import pytest

import forecast_autotune as fa

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "forecast_autotune"
LEFT_OUT = {".md", ".pyc"}

KERNEL = """
import triton
import triton.language as tl

import forecast_autotune as fa

@fa.autotune(configs=[triton.Config({"BLOCK": b}, num_warps=w) for b in (256, 1024) for w in (4, 8)], key=["n"])
@triton.jit
def scale(x, factor, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) * factor, mask=at < n)
"""


pytestmark = pytest.mark.xdist_group("wheel")  # every process would build it, and an environment for it


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree. It is built by the backend itself: pip would fetch it anew."""
    pytest.importorskip("hatchling")
    to = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(to)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    (made,) = to.iterdir()
    return made


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (n for n in packed.namelist() if n.endswith(".dist-info/METADATA"))
        return Parser().parsestr(packed.read(name).decode())


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = {PurePosixPath(name) for name in packed.namelist()}
    inside = {name for name in names if name.parts[0] == "forecast_autotune"}
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in LEFT_OUT)
    assert inside == {PurePosixPath(path.relative_to(ROOT).as_posix()) for path in files}
    needed = ("py.typed", "surrogates/prior.json", "language/templates/shared.j2", "boot/sitecustomize.py")
    assert {PurePosixPath("forecast_autotune", name) for name in needed} <= inside
    about = {name.name for name in names - inside}
    assert about == {"METADATA", "WHEEL", "RECORD", "entry_points.txt"}


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    says = metadata(wheel)
    assert says["Name"] == "forecast-autotune"
    assert says["Version"] == fa.__version__
    assert wheel.name == f"forecast_autotune-{fa.__version__}-py3-none-any.whl"
    assert says["License-Expression"] == "Apache-2.0"
    assert says["Description-Content-Type"] == "text/markdown"
    assert says.get_payload() == (ROOT / "README.md").read_text()
    assert {"completion", "server", "hf", "vllm"} <= set(says.get_all("Provides-Extra", []))
    assert "Typing :: Typed" in says.get_all("Classifier", [])


def test_the_wheel_offers_servers_a_plugin(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (n for n in packed.namelist() if n.endswith(".dist-info/entry_points.txt"))
        offered = ConfigParser()
        offered.read_string(packed.read(name).decode())
    for group in ("vllm.general_plugins", "sglang.srt.plugins"):
        assert dict(offered[group]) == {"forecast_autotune": "forecast_autotune.plugins:install_if_asked"}


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel alone, and finds in this one what it needs, such as torch."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(folder, with_pip=True)
    # Without its requirements: torch alone is hundreds of megabytes, and all of them are here.
    words = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel]
    subprocess.run(words, check=True, capture_output=True, env=outside())
    packages = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "beside.pth").write_text("\n".join(packages))
    return folder


def outside() -> dict[str, str]:
    """The environment without what leads back to this tree."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def ran(elsewhere: Path, folder: Path, *words: str, codes: tuple[int, ...] = (0,)) -> str:
    """What a command of that environment prints; it ends with one of these codes."""
    path = f"{elsewhere / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**outside(), "PATH": path, "FORECAST_AUTOTUNE_DIR": str(folder / "store")}
    done = subprocess.run(
        [elsewhere / "bin" / words[0], *words[1:]], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout


@pytest.mark.thorough
def test_the_installed_wheel_is_what_runs_and_knows_its_version(elsewhere: Path, tmp_path: Path) -> None:
    program = "import forecast_autotune as fa; print(fa.__file__, fa.__version__, len(fa.Space([{'A': 1}, {'A': 2}])))"
    where, version, configs = ran(elsewhere, tmp_path, "python", "-c", program).split()
    assert Path(where).is_relative_to(elsewhere)
    assert (version, configs) == (fa.__version__, "2")
    for words in (("forecast-autotune",), ("python", "-m", "forecast_autotune")):
        first, *others = ran(elsewhere, tmp_path, *words, "--version").splitlines()
        assert first == f"forecast-autotune {fa.__version__}"
        assert [line.split()[0] for line in others] == ["triton", "torch", "Python"]


@pytest.mark.thorough
def test_the_installed_command_checks_the_machine_and_forecasts(elsewhere: Path, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    findings = json.loads(ran(elsewhere, tmp_path, "forecast-autotune", "doctor", "--json", codes=(0, 1)))
    assert {"torch", "triton", "store"} <= {finding["check"] for finding in findings}
    (tmp_path / "kernels.py").write_text(KERNEL)
    words = ("forecast", "kernels.py:scale", "--target", "H100", "--arg", "x=float32[1048576]")
    told = ran(elsewhere, tmp_path, "forecast-autotune", *words, "--arg", "factor=2.0", "--arg", "n=1048576")
    assert told.count("BLOCK=") == 4
