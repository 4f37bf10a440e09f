#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

extern "C" cudaError_t cuda_gemm_kernel(int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* out,
                                        cudaStream_t stream);

void cuda_gemm(const at::Tensor& a, const at::Tensor& b, at::Tensor out) {
    for (const at::Tensor& matrix : {a, b, out}) {
        TORCH_CHECK(matrix.is_cuda() && matrix.scalar_type() == at::kFloat && matrix.device() == a.device(),
                    "cuda_gemm takes float32 on one GPU, not ", matrix.scalar_type(), " on ", matrix.device());
        TORCH_CHECK(matrix.dim() == 2 && matrix.is_contiguous(), "cuda_gemm takes contiguous matrices, not sizes ",
                    matrix.sizes(), " with strides ", matrix.strides());
        TORCH_CHECK(matrix.size(0) <= (1 << 30) && matrix.size(1) <= (1 << 30),
                    "cuda_gemm counts up to 2^30 rows or columns, not ", matrix.sizes());
    }
    const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
    TORCH_CHECK(b.size(0) == k && out.size(0) == m && out.size(1) == n,
                "cuda_gemm takes sizes [m, k], [k, n], [m, n], not ", a.sizes(), ", ", b.sizes(), ", ", out.sizes());
    const c10::cuda::CUDAGuard on(a.device());
    const cudaError_t error = cuda_gemm_kernel(m, n, k, a.const_data_ptr<float>(), b.const_data_ptr<float>(),
                                               out.mutable_data_ptr<float>(), c10::cuda::getCurrentCUDAStream());
    TORCH_CHECK(error == cudaSuccess, "cuda_gemm was not launched: ", cudaGetErrorString(error));
}
