"""A real C++ extension with one knob, whose values are good, slow, and bad in every way a kernel can be bad."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forecast_autotune.compilers.cpp_compile import CppCompiler
from forecast_autotune.compilers.cpp_recipe import Recipe
from forecast_autotune.core.config import Config
from forecast_autotune.core.space import Space
from forecast_autotune.measure.probe import detect_cpp_toolchain, detect_hardware

GOOD = ("plain", "slow", "slower")
BAD = (
    "segfaults",
    "hangs",
    "computes_nonsense",
    "does_not_compile",
    "overruns",
    "aborts",
    "corrupts_heap",
    "raises",
    "computes_nothing",
)
MODES = (*GOOD, *BAD)

KERNEL = (
    "\n".join(f"#define {mode} {i}" for i, mode in enumerate(MODES))
    + r"""
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

inline int mode_of_this_variant() {
  static const int mode = MODE;  // one per process, were it not kept apart
  return mode;
}

void scale(float* out, const float* x, float a, int64_t n) {
  printf("scale runs as mode %d\n", MODE);
  if (MODE == segfaults) *reinterpret_cast<volatile int*>(16) = 1;
  if (MODE == hangs) for (volatile int i = 0;; i = i + 1) {}
  if (MODE == aborts) abort();
  if (MODE == computes_nothing) return;
  if (MODE == raises) throw std::runtime_error("this variant raises");
  if (MODE == corrupts_heap) {
    volatile char* block = static_cast<char*>(malloc(24));
    for (int i = -16; i < 200; ++i) block[i] = 0x41;
    free(const_cast<char*>(block));
  }
#if MODE == does_not_compile
  this is no C++
#endif
  const int64_t past_the_end = MODE == overruns ? 8 : 0;
  for (int64_t i = 0; i < n + past_the_end; ++i) out[i] = a * x[i % n];
  if (MODE == computes_nonsense) out[n / 2] += 1000.0f;
  const int repeats = MODE == slow ? 20 : MODE == slower ? 40 : 0;
  for (int r = 0; r < repeats; ++r) {
    std::vector<float> other(out, out + n);
    for (int64_t i = 0; i < n; ++i) out[i] = other[n - 1 - i];
  }
}

int which() { return mode_of_this_variant(); }
"""
)

# With the few headers that it needs: all of torch's take 36 s of a core in place of 14 (GCC 12, torch 2.11).
BINDING = r"""
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <stdexcept>
void scale(float* out, const float* x, float a, int64_t n);
int which();

at::Tensor scaled(at::Tensor x, double a) {
  auto out = at::empty_like(x);
  scale(out.data_ptr<float>(), x.data_ptr<float>(), a, x.numel());
  return out;
}
void scale_into(at::Tensor out, at::Tensor x, double a) {
  scale(out.data_ptr<float>(), x.data_ptr<float>(), a, x.numel());
}
void scale_in_place(at::Tensor x, double a) {
  scale(x.data_ptr<float>(), x.data_ptr<float>(), a, x.numel());
}
void scale_up_to(at::Tensor x, double a, double limit) {
  scale(x.data_ptr<float>(), x.data_ptr<float>(), a, x.numel());
  if (x.data_ptr<float>()[0] > limit) throw std::runtime_error("over the limit");
}
static double factor = 1.0;
void set_factor(double a) { factor = a; }
at::Tensor scaled_by_factor(at::Tensor x) { return scaled(x, factor); }
at::Tensor same(at::Tensor x) { return x; }
int64_t mode() { return which(); }
at::Tensor marked(at::Tensor x) {
  auto out = at::empty_like(x);
  scale(out.data_ptr<float>(), x.data_ptr<float>(), 2.0, x.numel());
  out[0] = which();
  return out;
}
"""

FUNCTIONS = (
    "scaled", "scale_into", "scale_in_place", "scale_up_to", "same", "mode", "marked", "set_factor", "scaled_by_factor"
)  # fmt: skip


class Toy:
    """The extension as arguments, as a space and as a compiler, all sharing one folder of builds."""

    def __init__(self, builds: Path) -> None:
        self.builds = builds

    def space(self, modes: Sequence[str] = GOOD) -> Space:
        return Space([{"MODE": mode} for mode in modes])

    def arguments(self) -> dict[str, Any]:
        """What `fa.load_inline` takes, but for the space."""
        return {
            "name": "toy",
            "cpp_sources": BINDING,
            "functions": list(FUNCTIONS),
            "extra_cflags": ["-O2"],
            "no_implicit_headers": True,
            "build_directory": str(self.builds),
            "kernel_sources": KERNEL,
            "signature": {
                "scaled": "x, a",
                "scale_into": "out, x, a",
                "scale_in_place": "x, a",
                "scale_up_to": "x, a, limit",
                "same": "x",
            },
        }

    def compiler(self, **options: Any) -> CppCompiler:
        recipe = Recipe(
            name="toy",
            cpp_sources=(BINDING,),
            kernel_sources=(KERNEL,),
            functions={f: f for f in FUNCTIONS},
            arguments={"extra_cflags": ["-O2"], "no_implicit_headers": True, "build_directory": str(self.builds)},
        )
        return CppCompiler(recipe, detect_cpp_toolchain(recipe.flags), detect_hardware(), self.builds, **options)

    def config(self, mode: str) -> Config:
        return Config({"MODE": mode})
