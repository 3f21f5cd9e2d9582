// The operators: each runs on the host's kernel over the device's bytes, so its results are the CPU's.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "tensors.h"

namespace acme {

using torch::jit::Stack;

inline void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const auto first = stack->size() - schema.arguments().size();
  HostCall call(op);
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    auto& value = (*stack)[first + i];
    value = call.to_host(value, schema.arguments()[i].name());
  }
  call.check_apart();
  std::optional<BorrowedHostGenerator> borrowed;
  if (call.takes_generator()) {
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      auto& value = (*stack)[first + i];
      if (schema.arguments()[i].name() == "generator" && value.isNone()) {
        value = host_generator(default_generator(call.index()));
      }
    }
  } else if (op.hasTag(at::Tag::nondeterministic_seeded)) {
    borrowed.emplace(host_generator(default_generator(call.index())));
  }
  {
    // Autocast of the host is none of the device's business.
    const c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::AutocastCPU);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  borrowed.reset();
  call.bring_back();
  for (auto i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    (*stack)[i] = call.to_device((*stack)[i]);
  }
}

inline at::Tensor empty(
    at::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory,
    std::optional<at::MemoryFormat> memory_format) {
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "Only dense CPU tensors can be pinned");
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == c10::kStrided, "strided tensors only");
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(
      size, &device_memory(), c10::DispatchKeySet(runtime().key), c10::dtype_or_default(dtype), memory_format);
}

inline at::Tensor empty_strided(
    at::IntArrayRef size,
    at::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(
      size, stride, &device_memory(), c10::DispatchKeySet(runtime().key), c10::dtype_or_default(dtype));
}

// All copies from and to the device, and between devices.
inline at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool) {
  host_view(target).copy_(host_view(source));
  return target;
}

// The same for a type of which torch believes that it has kernels to copy with.
inline at::Tensor& copy(at::Tensor& target, const at::Tensor& source, bool) {
  host_view(target).copy_(host_view(source));
  return target;
}

inline at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

inline void record_stream(at::Tensor&, c10::Stream) {} // nothing is ever under way

inline c10::OperatorHandle operator_of(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

// Torch calls other operators than the host's for the convolutions of other types of device.

inline void convolution_overrideable(const c10::OperatorHandle&, Stack* stack) {
  fallback(operator_of("aten::convolution"), stack);
}

inline void convolution_backward_overrideable(const c10::OperatorHandle&, Stack* stack) {
  const auto first = stack->end() - 10;
  const auto channels = first->toTensor().size(1);
  stack->insert(first + 3, c10::IValue(std::vector<int64_t>{channels})); // the size of the bias
  fallback(operator_of("aten::convolution_backward"), stack);
}

// Attention taken apart, where torch believes that it has a kernel for the type that chooses another way.
inline void attention(const c10::OperatorHandle&, Stack* stack) {
  stack->insert(stack->end() - 2, c10::IValue()); // no dropout mask
  operator_of("aten::_scaled_dot_product_attention_math").callBoxed(stack);
  stack->pop_back(); // the weights
}

// Registrations last as long as the process.
inline torch::Library& library(const char* name_space, c10::DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, name_space, key, __FILE__, __LINE__);
}

inline void register_kernels() {
  library("_", runtime().key).fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  auto& aten = library("aten", runtime().key);
  aten.impl("empty.memory_format", TORCH_FN(empty));
  aten.impl("empty_strided", TORCH_FN(empty_strided));
  aten.impl("_copy_from", TORCH_FN(copy_from));
  aten.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  aten.impl("record_stream", TORCH_FN(record_stream));
  aten.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution_overrideable>());
  aten.impl(
      "convolution_backward_overrideable",
      torch::CppFunction::makeFromBoxedFunction<&convolution_backward_overrideable>());
  // A copy takes a view as conjugate or negative into account itself: torch would copy it first, for ever.
  for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
    library("aten", key).impl("_copy_from", torch::CppFunction::makeFallthrough());
  }
  // Of these types torch expects its own kernels for copies and attention, which its build for the CPU lacks.
  const bool is_mps = runtime().type == c10::DeviceType::MPS;
  if (is_mps || runtime().type == c10::DeviceType::XPU) {
    aten.impl("copy_", TORCH_FN(copy));
    const auto autograd = is_mps ? c10::DispatchKey::AutogradMPS : c10::DispatchKey::AutogradXPU;
    for (const auto key : {runtime().key, autograd}) {
      library("aten", key).impl(
          "scaled_dot_product_attention", torch::CppFunction::makeFromBoxedFunction<&attention>());
    }
  }
  // Without their own kernels torch takes these apart, with other roundings than the host's.
  for (const char* name : {"native_layer_norm", "native_group_norm"}) {
    aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

} // namespace acme
