"""A dot product in C++ through `fa.load_inline`: five variants of one source, the best of them ten times the first's speed.

Look at `kernel_sources`, which knows nothing of torch: it is compiled once a variant, in half a second. `cpp_sources` binds
it to torch and is compiled once, at the very first call, for as long as torch's headers take. `LANES` is a macro in the
source and a knob in the space. Runs on the CPU.

Prints the result, the chosen variant, its speed against the default's (LANES=1), and how many variants were tried.
"""

import torch

import forecast_autotune as fa

module = fa.load_inline(
    "dot",
    cpp_sources="""
        float dot(const float*, const float*, int64_t);
        double product(torch::Tensor x, torch::Tensor y) {
            return dot(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
        }""",
    kernel_sources="""
        #include <cstdint>
        float dot(const float* x, const float* y, int64_t n) {
            float sums[LANES] = {};
            for (int64_t i = 0; i + LANES <= n; i += LANES)
                for (int lane = 0; lane < LANES; ++lane) sums[lane] += x[i + lane] * y[i + lane];
            float sum = 0;
            for (int64_t i = n - n % LANES; i < n; ++i) sum += x[i] * y[i];
            for (float lane : sums) sum += lane;
            return sum;
        }""",
    functions=["product"],
    extra_cflags=["-O3"],
    signature="x, y",
    key="x",
    space=fa.Space.grid({"LANES": [1, 4, 16, 64, 256]}),
)
x, y = torch.ones(2, 1 << 16)
print(module.product(x, y))  # the first call of a size tunes; later calls only look the decision up

(decision,) = module.product.decisions.values()
print(f"{decision.config}: {decision.speedup or 1:.1f}x the default's speed,", end=" ")
print(f"{decision.tried} of {decision.space_size} tried")
