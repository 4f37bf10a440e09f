"""An extension whose variants do to their process what no kernel should, and a program that tunes it."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.ledger import Case

GOOD = ("plain", "slow", "slower")

ENDS = ("exits_well", "exits_at_once", "exits_badly", "overflows_the_stack", "throws_a_number", "crashes_when_loaded")
STAYS = ("leaves_a_child", "leaves_a_daemon", "leaves_a_shell", "leaves_a_thread", "becomes_a_daemon")
TALKS = ("prints_much", "reads_stdin", "closes_stdio", "closes_everything", "writes_everywhere")
HANGS = ("hangs_deaf", "hangs_when_loaded", "hangs_when_timed")
LIES = (
    "right_once",
    "right_later",
    "draws_lots",
    "not_a_number",
    "writes_its_input",
    "writes_before",
    "writes_past_later",
)
MEDDLES = ("changes_process", "rounds_up", "sleeps_first")
EATS = ("eats_memory",)
MODES = (*GOOD, *ENDS, *STAYS, *TALKS, *HANGS, *LIES, *MEDDLES, *EATS)

KERNEL = (
    "\n".join(f"#define {mode} {i}" for i, mode in enumerate(MODES))
    + r"""
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstdint>

static void hang() { for (volatile int i = 0;; i = i + 1) {} }
static void* hang_in_thread(void*) { for (;;) pause(); }
static void stay() { if (fork() == 0) for (;;) pause(); }
static int depth(volatile int n) { volatile char room[4096]; room[n % 4096] = 1; return depth(n + 1) + room[0]; }

struct Loaded {
  Loaded() {
    if (MODE == crashes_when_loaded) abort();
    if (MODE == hangs_when_loaded) hang();
  }
} loaded;

void scale(float* out, float* x, float a, int64_t n) {
  static int calls = 0;
  ++calls;
  if (MODE == exits_well) exit(0);
  if (MODE == exits_at_once) _exit(0);
  if (MODE == exits_badly) exit(1);
  if (MODE == overflows_the_stack) depth(0);
  if (MODE == throws_a_number) throw 42;
  if (calls == 1) {
    if (MODE == leaves_a_child) stay();
    if (MODE == leaves_a_daemon && fork() == 0) { setsid(); for (;;) pause(); }
    if (MODE == leaves_a_shell) if (system("setsid sleep 1000 > /dev/null 2>&1 &")) abort();
    if (MODE == leaves_a_thread) { pthread_t t; pthread_create(&t, 0, hang_in_thread, 0); }
    if (MODE == becomes_a_daemon) { if (fork()) _exit(0); setsid(); }
    if (MODE == prints_much) {
      static char text[1 << 20];
      memset(text, 'x', sizeof text);
      for (int i = 0; i < 20; ++i)
        if (write(1, text, sizeof text) < 0 || fwrite(text, 1, sizeof text, stderr) < 1) break;
    }
    if (MODE == reads_stdin) while (getchar() != EOF) {}
    if (MODE == closes_stdio) for (int i = 0; i < 3; ++i) close(i);
    if (MODE == closes_everything) for (int i = 0; i < 1024; ++i) close(i);
    if (MODE == writes_everywhere) for (int i = 3; i < 64; ++i) if (write(i, "nonsense", 8) < 0) continue;
    if (MODE == changes_process) {
      signal(SIGTERM, SIG_IGN); signal(SIGINT, SIG_IGN); umask(0); setenv("MEDDLED", "1", 1);
      setlocale(LC_ALL, "C"); if (chdir("/")) abort();
    }
    if (MODE == rounds_up) fesetround(FE_UPWARD);
    if (MODE == sleeps_first) usleep(300000);
  }
  if (MODE == hangs_deaf || (MODE == hangs_when_timed && calls > 2)) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, 0);
    setpgid(0, getpgid(getppid()));
    hang();
  }
  if (MODE == eats_memory) for (;;) { char* block = (char*)malloc(64 << 20); if (block) memset(block, 1, 64 << 20); }
  for (int64_t i = 0; i < n; ++i) out[i] = a * x[i];
  // None but the plain one is worth choosing.
  const int repeats = MODE == plain ? 0 : MODE == slow ? 60 : MODE == slower ? 90 : 30;
  for (int r = 0; r < repeats; ++r) for (int64_t i = 0; i < n; ++i) { volatile float once = out[i]; out[i] = once; }
  if (MODE == right_once && calls > 1) out[n / 2] += 1000;
  if (MODE == right_later && calls == 1) out[n / 2] += 1000;
  if (MODE == draws_lots) out[n / 2] = rand();
  if (MODE == not_a_number) out[n / 2] = 0.0f / 0.0f * out[0];
  if (MODE == writes_its_input) x[0] += 1;
  if (MODE == writes_before) out[-2] = 1;
  if (MODE == writes_past_later && calls > 1) out[n] = 1;
}
"""
)

BINDING = """
#include <ATen/core/Tensor.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
void scale(float* out, float* x, float a, int64_t n);
void scale_into(at::Tensor out, at::Tensor x, double a) {
  scale(out.data_ptr<float>(), x.data_ptr<float>(), a, x.numel());
}
"""

PROGRAM = """
    import ctypes, json, os, signal, sys
    from pathlib import Path
    import torch
    import forecast_autotune as fa
    from faults import bad_kernels
    from forecast_autotune.compilers import cpp_compile
    from forecast_autotune.measure import isolated
    from forecast_autotune.processes import worker

    builds, modes, changes = sys.argv[1], sys.argv[2].split(","), json.loads(sys.argv[3])
    for name, value in changes.items():
        for module in (isolated, cpp_compile, worker):
            if hasattr(module, name):
                setattr(module, name, (lambda bytes=value: bytes) if name == "usable_memory_bytes" else value)
    tried = []
    measure = isolated.Isolated.measure
    slack_s, load_timeout_s = 60.0, isolated.LOAD_TIMEOUT_S

    def reported(measurer, config, *limits):
        tried.append(config["MODE"])
        # A short limit is for what never ends, not for what is good on a busy machine.
        isolated.LOAD_TIMEOUT_S = slack_s if config["MODE"] in bad_kernels.GOOD else load_timeout_s
        return measure(measurer, config, *limits)

    isolated.Isolated.measure = reported

    def surroundings():
        umask = os.umask(0o027)
        os.umask(umask)
        handlers = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)]
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        rounding = ctypes.CDLL(None).fegetround()
        return os.getcwd(), umask, dict(os.environ), handlers, mask, rounding, torch.get_rng_state().tolist()

    module = fa.load_inline(**bad_kernels.arguments(builds), space=[{"MODE": m} for m in modes], budget="all")
    x, out = torch.arange(4000, dtype=torch.float32), torch.zeros(4000)
    before = surroundings()
    module.scale_into(out, x, 2.0)
    right = torch.equal(out, 2 * torch.arange(4000, dtype=torch.float32))
    (decision,) = module.scale_into.decisions.values()
    found = {}
    for config, outcome in module.scale_into.tuned.outcomes((out, x, 2.0)).items():
        failed = hasattr(outcome, "stage")
        found[config["MODE"]] = (
            [outcome.stage, outcome.message, outcome.crashed, outcome.transient] if failed else ["ran", "", False, False]
        )
    print(json.dumps({"right": right, "same": surroundings() == before, "chosen": decision.config["MODE"],
                      "tried": tried, "found": found}))
"""


def arguments(builds: str) -> dict[str, Any]:
    return {
        "name": "bad_kernels",
        "cpp_sources": BINDING,
        "functions": ["scale_into"],
        "extra_cflags": ["-O1", "-fno-delete-null-pointer-checks"],
        "no_implicit_headers": True,
        "build_directory": builds,
        "kernel_sources": KERNEL,
        "signature": "out, x, a",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What a program saw of tuning: whether its call was right, what was chosen and tried, and what became of each mode."""

    right: bool
    same: bool  # its surroundings, before and after
    chosen: str
    tried: list[str]
    found: dict[str, tuple[str, str, bool, bool]]  # stage or "ran", message, crashed, transient
    said: str  # on stderr


def tune(
    case: Case, builds: Path, modes: tuple[str, ...], *, also: str = "slow", timeout_s: float = 240, **changes: Any
) -> Tuned:
    """Tune over these modes, the good ones among them, in a process of its own whose stdin is kept open."""
    program = textwrap.dedent(PROGRAM)
    command = [
        sys.executable,
        "-c",
        program,
        str(builds),
        ",".join(dict.fromkeys(("slow", also, *modes, "plain"))),
        json.dumps(changes),
    ]
    process = subprocess.Popen(
        command, env=case.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        said, complained = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == 0, complained
    assert said.count("\n") == 1, "the program's stdout is its own"
    told = json.loads(said)
    return Tuned(
        **{**told, "found": {mode: tuple(outcome) for mode, outcome in told["found"].items()}}, said=complained
    )
