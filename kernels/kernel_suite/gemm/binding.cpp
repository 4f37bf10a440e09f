#include <torch/extension.h>

extern "C" void gemm_kernel(int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* out);

void gemm(const torch::Tensor& a, const torch::Tensor& b, torch::Tensor out) {
    for (const torch::Tensor& matrix : {a, b, out}) {
        TORCH_CHECK(matrix.device().is_cpu() && matrix.scalar_type() == torch::kFloat32,
                    "gemm takes float32 on the CPU, not ", matrix.scalar_type(), " on ", matrix.device());
        TORCH_CHECK(matrix.dim() == 2 && matrix.is_contiguous(), "gemm takes contiguous matrices, not sizes ",
                    matrix.sizes(), " with strides ", matrix.strides());
    }
    const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
    TORCH_CHECK(b.size(0) == k && out.size(0) == m && out.size(1) == n, "gemm takes sizes [m, k], [k, n], [m, n], not ",
                a.sizes(), ", ", b.sizes(), ", ", out.sizes());
    gemm_kernel(m, n, k, a.const_data_ptr<float>(), b.const_data_ptr<float>(), out.mutable_data_ptr<float>());
}
