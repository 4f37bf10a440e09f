#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

extern "C" cudaError_t cuda_conv2d_kernel(int64_t images, int64_t channels, int64_t height, int64_t width,
                                          int64_t features, int64_t taps_y, int64_t taps_x, const float* image,
                                          const float* weight, float* out, cudaStream_t stream);

void cuda_conv2d(const at::Tensor& image, const at::Tensor& weight, at::Tensor out) {
    for (const at::Tensor& tensor : {image, weight, out}) {
        TORCH_CHECK(tensor.is_cuda() && tensor.scalar_type() == at::kFloat && tensor.device() == image.device(),
                    "cuda_conv2d takes float32 on one GPU, not ", tensor.scalar_type(), " on ", tensor.device());
        TORCH_CHECK(tensor.dim() == 4 && tensor.is_contiguous(),
                    "cuda_conv2d takes contiguous tensors of four dimensions, not sizes ", tensor.sizes(),
                    " with strides ", tensor.strides());
    }
    TORCH_CHECK(weight.size(1) == image.size(1), "cuda_conv2d takes images [images, channels, height, width] and weights "
                "[features, channels, taps, taps], not ", image.sizes(), " and ", weight.sizes());
    const int64_t rows = image.size(2) - weight.size(2) + 1, columns = image.size(3) - weight.size(3) + 1;
    TORCH_CHECK(weight.size(2) > 0 && weight.size(3) > 0 && rows > 0 && columns > 0, "weights of sizes ",
                weight.sizes(), " do not fit into images of sizes ", image.sizes());
    TORCH_CHECK(image.size(2) * image.size(3) <= (1 << 30) && weight.numel() <= (1 << 30) &&
                image.size(0) <= (1 << 30) && image.size(1) <= (1 << 30) && weight.size(0) <= (1 << 30),
                "cuda_conv2d counts up to 2^30 pixels of a channel, and weights, not ", image.sizes(), " and ",
                weight.sizes());
    TORCH_CHECK(out.sizes() == at::IntArrayRef({image.size(0), weight.size(0), rows, columns}), "cuda_conv2d writes [",
                image.size(0), ", ", weight.size(0), ", ", rows, ", ", columns, "], not ", out.sizes());
    const c10::cuda::CUDAGuard on(image.device());
    const cudaError_t error = cuda_conv2d_kernel(
        image.size(0), image.size(1), image.size(2), image.size(3), weight.size(0), weight.size(2), weight.size(3),
        image.const_data_ptr<float>(), weight.const_data_ptr<float>(), out.mutable_data_ptr<float>(),
        c10::cuda::getCurrentCUDAStream());
    TORCH_CHECK(error == cudaSuccess, "cuda_conv2d was not launched: ", cudaGetErrorString(error));
}
