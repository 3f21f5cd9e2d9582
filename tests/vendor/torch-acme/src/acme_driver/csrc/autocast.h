// Autocast on the device, with the policy of torch's on the CPU: an operator that the CPU's autocast knows is cast here.
#pragma once

#include <ATen/autocast_mode.h>

#include <set>

#include "kernels.h"

namespace acme {

enum class Policy { lower, full, widest };

inline bool takes_part(const at::Tensor& tensor) {
  return is_on_device(tensor) && tensor.is_floating_point() && tensor.scalar_type() != at::kDouble;
}

template <class Visit>
void for_each_tensor(c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    value = visit(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorList()) {
      list.push_back(visit(tensor));
    }
    value = list;
  }
}

template <Policy policy>
void autocast(const c10::OperatorHandle& op, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard guard(runtime().autocast_key);
  const auto arguments = op.schema().arguments().size();
  auto dtype = at::kFloat;
  if constexpr (policy == Policy::lower) {
    dtype = at::autocast::get_autocast_dtype(runtime().type);
  } else if constexpr (policy == Policy::widest) {
    dtype = at::autocast::get_autocast_dtype(runtime().type);
    for (auto i = stack->size() - arguments; i < stack->size(); ++i) {
      for_each_tensor((*stack)[i], [&](const at::Tensor& tensor) {
        if (takes_part(tensor) && tensor.scalar_type() == at::kFloat) {
          dtype = at::kFloat;
        }
        return tensor;
      });
    }
  }
  for (auto i = stack->size() - arguments; i < stack->size(); ++i) {
    for_each_tensor((*stack)[i], [&](const at::Tensor& tensor) {
      return takes_part(tensor) ? at::autocast::cached_cast(dtype, tensor, runtime().type) : tensor;
    });
  }
  op.callBoxed(stack);
}

inline void register_autocast() {
  const std::set<std::string> lower{
      "conv1d", "conv1d.padding", "conv2d", "conv2d.padding", "conv3d", "conv3d.padding", "conv_tbc",
      "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "_convolution.deprecated", "bmm", "mm",
      "addmm", "addbmm", "baddbmm", "_addmm_activation", "linear", "matmul", "linalg_vecdot", "prelu",
      "scaled_dot_product_attention", "_native_multi_head_attention", "mkldnn_rnn_layer"};
  const std::set<std::string> widest{"cat", "stack", "index_copy"};
  const std::string prefix = "aten::";

  auto& dispatcher = c10::Dispatcher::singleton();
  if (!dispatcher.getRegistrationsForDispatchKey(runtime().autocast_key).empty()) {
    return; // torch brings the autocast of this type itself
  }
  if (!dispatcher.hasBackendFallbackForDispatchKey(runtime().autocast_key)) {
    library("_", runtime().autocast_key).fallback(torch::CppFunction::makeFallthrough());
  }
  auto& aten = library("aten", runtime().autocast_key);
  for (const auto& op : dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::AutocastCPU)) {
    if (op.name.rfind(prefix, 0) != 0) {
      continue;
    }
    const auto name = toString(op).substr(prefix.size());
    if (lower.count(name)) {
      aten.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&autocast<Policy::lower>>());
    } else if (widest.count(name)) {
      aten.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&autocast<Policy::widest>>());
    } else {
      aten.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&autocast<Policy::full>>());
    }
  }
}

} // namespace acme
