#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

extern "C" int64_t cuda_reduction_scratch(int64_t n);
extern "C" cudaError_t cuda_reduction_kernel(int64_t n, const float* x, float* out, float* scratch,
                                             cudaStream_t stream);

void cuda_reduction(const at::Tensor& x, at::Tensor out) {
    for (const at::Tensor& tensor : {x, out}) {
        TORCH_CHECK(tensor.is_cuda() && tensor.scalar_type() == at::kFloat && tensor.device() == x.device(),
                    "cuda_reduction takes float32 on one GPU, not ", tensor.scalar_type(), " on ", tensor.device());
        TORCH_CHECK(tensor.is_contiguous(), "cuda_reduction takes contiguous tensors, not strides ", tensor.strides());
    }
    TORCH_CHECK(out.numel() == 1, "cuda_reduction writes one number, not sizes ", out.sizes());
    TORCH_CHECK(reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0,
                "cuda_reduction loads 16 bytes at once: x must begin at a multiple of that, not within another tensor");
    const c10::cuda::CUDAGuard on(x.device());
    const at::Tensor scratch = x.new_empty({cuda_reduction_scratch(x.numel())});
    const cudaError_t error =
        cuda_reduction_kernel(x.numel(), x.const_data_ptr<float>(), out.mutable_data_ptr<float>(),
                              scratch.mutable_data_ptr<float>(), c10::cuda::getCurrentCUDAStream());
    TORCH_CHECK(error == cudaSuccess, "cuda_reduction was not launched: ", cudaGetErrorString(error));
}
