#include <torch/extension.h>

extern "C" void conv2d_kernel(int64_t channels, int64_t height, int64_t width, int64_t features, int64_t taps_y,
                              int64_t taps_x, const float* image, const float* weight, float* out);

void conv2d(const torch::Tensor& image, const torch::Tensor& weight, torch::Tensor out) {
    for (const torch::Tensor& tensor : {image, weight, out}) {
        TORCH_CHECK(tensor.device().is_cpu() && tensor.scalar_type() == torch::kFloat32,
                    "conv2d takes float32 on the CPU, not ", tensor.scalar_type(), " on ", tensor.device());
        TORCH_CHECK(tensor.is_contiguous(), "conv2d takes contiguous tensors, not strides ", tensor.strides());
    }
    TORCH_CHECK(image.dim() == 3 && weight.dim() == 4 && weight.size(1) == image.size(0),
                "conv2d takes an image [channels, height, width] and weights [features, channels, taps, taps], not ",
                image.sizes(), " and ", weight.sizes());
    const int64_t height = image.size(1) - weight.size(2) + 1, width = image.size(2) - weight.size(3) + 1;
    TORCH_CHECK(weight.size(2) > 0 && weight.size(3) > 0 && height > 0 && width > 0, "weights of sizes ",
                weight.sizes(), " do not fit into an image of sizes ", image.sizes());
    TORCH_CHECK(out.sizes() == torch::IntArrayRef({weight.size(0), height, width}), "conv2d writes [", weight.size(0),
                ", ", height, ", ", width, "], not ", out.sizes());
    conv2d_kernel(image.size(0), image.size(1), image.size(2), weight.size(0), weight.size(2), weight.size(3),
                  image.const_data_ptr<float>(), weight.const_data_ptr<float>(), out.mutable_data_ptr<float>());
}
