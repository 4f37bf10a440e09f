#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

extern "C" cudaError_t cuda_transpose_kernel(int64_t rows, int64_t columns, const float* x, float* out,
                                             cudaStream_t stream);

void cuda_transpose(const at::Tensor& x, at::Tensor out) {
    for (const at::Tensor& matrix : {x, out}) {
        TORCH_CHECK(matrix.is_cuda() && matrix.scalar_type() == at::kFloat && matrix.device() == x.device(),
                    "cuda_transpose takes float32 on one GPU, not ", matrix.scalar_type(), " on ", matrix.device());
        TORCH_CHECK(matrix.dim() == 2 && matrix.is_contiguous(), "cuda_transpose takes contiguous matrices, not sizes ",
                    matrix.sizes(), " with strides ", matrix.strides());
        TORCH_CHECK(reinterpret_cast<uintptr_t>(matrix.const_data_ptr()) % 16 == 0,
                    "cuda_transpose moves 16 bytes at once: a matrix must begin at a multiple of that");
    }
    const int64_t rows = x.size(0), columns = x.size(1);
    TORCH_CHECK(out.size(0) == columns && out.size(1) == rows, "cuda_transpose writes [", columns, ", ", rows,
                "], not ", out.sizes());
    TORCH_CHECK(rows <= (1 << 30) && columns <= (1 << 30), "cuda_transpose counts up to 2^30 rows or columns, not ",
                x.sizes());
    const c10::cuda::CUDAGuard on(x.device());
    const cudaError_t error = cuda_transpose_kernel(rows, columns, x.const_data_ptr<float>(),
                                                    out.mutable_data_ptr<float>(), c10::cuda::getCurrentCUDAStream());
    TORCH_CHECK(error == cudaSuccess, "cuda_transpose was not launched: ", cudaGetErrorString(error));
}
