#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

extern "C" cudaError_t cuda_softmax_kernel(int64_t rows, int64_t n, const float* x, float* out, cudaStream_t stream);

void cuda_softmax(const at::Tensor& x, at::Tensor out) {
    for (const at::Tensor& matrix : {x, out}) {
        TORCH_CHECK(matrix.is_cuda() && matrix.scalar_type() == at::kFloat && matrix.device() == x.device(),
                    "cuda_softmax takes float32 on one GPU, not ", matrix.scalar_type(), " on ", matrix.device());
        TORCH_CHECK(matrix.dim() == 2 && matrix.is_contiguous(), "cuda_softmax takes contiguous matrices, not sizes ",
                    matrix.sizes(), " with strides ", matrix.strides());
        TORCH_CHECK(reinterpret_cast<uintptr_t>(matrix.const_data_ptr()) % 16 == 0,
                    "cuda_softmax moves 16 bytes at once: a matrix must begin at a multiple of that");
    }
    const int64_t rows = x.size(0), n = x.size(1);
    TORCH_CHECK(out.sizes() == x.sizes(), "cuda_softmax writes ", x.sizes(), ", not ", out.sizes());
    TORCH_CHECK(rows < (1ll << 31) && n <= (1 << 30), "cuda_softmax counts up to 2^31 rows and 2^30 columns, not ",
                x.sizes());
    const c10::cuda::CUDAGuard on(x.device());
    const cudaError_t error = cuda_softmax_kernel(rows, n, x.const_data_ptr<float>(), out.mutable_data_ptr<float>(),
                                                  c10::cuda::getCurrentCUDAStream());
    TORCH_CHECK(error == cudaSuccess, "cuda_softmax was not launched: ", cudaGetErrorString(error));
}
