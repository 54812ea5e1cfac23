// A CUDA device that has no memory and runs nothing. torch's autograd asks it for devices, streams and events, and
// scaled_dot_product_attention asks which of its kernels to run: that is answered by a function of the caller.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>
#include <optional>
#include <vector>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

long cudnn = 0;  // version, 92000 for 9.20

Device the_device() { return Device(DeviceType::CUDA, 0); }
Stream the_stream() { return Stream(Stream::DEFAULT, the_device()); }

struct NoGpuGuard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device) const override { return the_device(); }
  Device getDevice() const override { return the_device(); }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return the_stream(); }
  Stream getDefaultStream(Device) const override { return the_stream(); }
  Stream exchangeStream(Stream) const override { return the_stream(); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};

struct NoGpuHooks final : at::CUDAHooksInterface {
  bool isBuilt() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
  bool compiledWithCuDNN() const override { return true; }  // convolutions are laid out as cuDNN lays them out
  bool supportsDilatedConvolutionWithCuDNN() const override { return true; }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return true; }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override { return true; }
  bool supportsBFloat16RNNWithCuDNN() const override { return true; }
  long versionCuDNN() const override { return cudnn; }
  long versionRuntimeCuDNN() const override { return cudnn; }
  double batchnormMinEpsilonCuDNN() const override { return 0.0; }
};

NoGpuGuard guard;
NoGpuHooks hooks;

auto& guard_in_use() { return c10::impl::device_guard_impl_registry[static_cast<size_t>(DeviceType::CUDA)]; }

// torch makes its hooks once and keeps them, so they are exchanged by their table of virtual functions: neither has data that
// these functions use.
void* hooks_in_use() { return const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks()); }

// Of query, key, value and mask: dimensions (-1: no tensor), dtype, requires_grad, sizes, strides.
using Choose = int64_t (*)(const int64_t* facts, double dropout, bool causal, bool grouped, bool grad_mode);
Choose choose = nullptr;

void describe(const at::Tensor* tensor, std::vector<int64_t>& facts) {
  facts.push_back(tensor ? tensor->dim() : -1);
  if (!tensor) return;
  facts.push_back(static_cast<int64_t>(tensor->scalar_type()));
  facts.push_back(tensor->requires_grad());
  for (auto size : tensor->sizes()) facts.push_back(size);
  for (auto stride : tensor->strides()) facts.push_back(stride);
}

int64_t chosen(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double dropout, bool causal, std::optional<double>, bool grouped) {
  std::vector<int64_t> facts;
  for (auto tensor : {&query, &key, &value, mask && mask->defined() ? &*mask : nullptr}) describe(tensor, facts);
  return choose(facts.data(), dropout, causal, grouped, at::GradMode::is_enabled());
}

const c10::impl::DeviceGuardImplInterface* usual_guard = nullptr;
void* usual_hooks = nullptr;

}  // namespace

extern "C" void remate_no_gpu_enter(Choose by, long cudnn_version) {
  cudnn = cudnn_version;
  choose = by;
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(chosen);
  usual_guard = guard_in_use().exchange(&guard);
  std::memcpy(&usual_hooks, hooks_in_use(), sizeof usual_hooks);
  std::memcpy(hooks_in_use(), static_cast<void*>(&hooks), sizeof usual_hooks);
}

extern "C" void remate_no_gpu_leave() {
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(nullptr);
  std::memcpy(hooks_in_use(), &usual_hooks, sizeof usual_hooks);
  guard_in_use().store(usual_guard);
}
