// The way between a device's tensors and the host's: two tensors over the same bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>

#include <unordered_map>

#include "generator.h"
#include "runtime.h"

namespace acme {

inline bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == runtime().type;
}

// A tensor over `storage`, shaped as `like`; as a view of `base` where there is one, in inference mode as well.
inline at::Tensor tensor_over(
    c10::Storage storage, c10::DispatchKey key, const at::Tensor& like, const at::Tensor& base = {}) {
  auto made = base.defined()
      ? at::detail::make_tensor<c10::TensorImpl>(
            c10::TensorImpl::VIEW, std::move(storage), base.key_set(), like.dtype())
      : at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.dim() == 0) {
    impl->set_wrapped_number(like.unsafeGetTensorImpl()->is_wrapped_number());
  }
  made._set_conj(like.is_conj());
  made._set_neg(like.is_neg());
  return made;
}

// A storage of the host over the bytes of a device's, which it keeps alive. A host kernel may resize it: it then has
// memory of its own.
inline c10::Storage host_storage(const c10::Storage& storage) {
  c10::DataPtr data(
      storage.mutable_data(), new c10::Storage(storage),
      [](void* context) { delete static_cast<c10::Storage*>(context); }, c10::Device(c10::kCPU));
  return c10::Storage(
      c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), c10::GetCPUAllocator(), /*resizable=*/true);
}

inline at::Tensor host_view(const at::Tensor& tensor) {
  if (!is_on_device(tensor)) {
    return tensor;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      tensor.layout() == c10::kStrided, c10::DeviceTypeName(runtime().type, true), " has strided tensors only");
  return tensor_over(host_storage(tensor.storage()), c10::DispatchKey::CPU, tensor);
}

inline std::vector<at::Tensor> host_views(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> views;
  for (const auto& tensor : tensors) {
    views.push_back(host_view(tensor));
  }
  return views;
}

// One call of an operator: its arguments brought to the host, its results brought back.
class HostCall {
 public:
  explicit HostCall(const c10::OperatorHandle& op) : op_(op) {}

  c10::IValue to_host(const c10::IValue& value, const std::string& name) {
    if (value.isTensor()) {
      return to_host(value.toTensor());
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorList()) {
        list.push_back(to_host(tensor));
      }
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
        list.push_back(tensor.has_value() ? std::optional<at::Tensor>(to_host(*tensor)) : std::nullopt);
      }
      return list;
    }
    if (is_list_of_lists(value)) {
      return for_each_list(value, [&](const c10::IValue& list) { return to_host(list, name); });
    }
    if (value.isStorage()) {
      return to_host(value.toStorage());
    }
    if (value.isDevice()) {
      const auto device = value.toDevice();
      if (device.type() != runtime().type) {
        return value;
      }
      see(device.has_index() ? device.index() : current_device());
      return c10::Device(c10::kCPU);
    }
    if (name == "generator") {
      takes_generator_ = true;
      if (value.isGenerator()) {
        const auto generator = value.toGenerator();
        TORCH_CHECK(
            generator.device().type() == runtime().type, "Expected a '", c10::DeviceTypeName(runtime().type, true),
            "' device type for generator but found '", generator.device().type(), "'");
        return host_generator(generator);
      }
    }
    return value;
  }

  // The device that the call is made on: that of its arguments, else the current one.
  DeviceIndex index() const {
    return index_ == -1 ? current_device() : index_;
  }

  bool takes_generator() const {
    return takes_generator_;
  }

  // Refuse what a real device can't read. Single numbers may come from the host, and indices.
  void check_apart() const {
    if (!host_tensor_ || index_ == -1) {
      return;
    }
    const auto& name = op_.operator_name().name;
    TORCH_CHECK(
        name == "aten::index" || name == "aten::index_put_" || name == "aten::_index_put_impl_",
        "Expected all tensors to be on the same device, but found at least two devices, ",
        runtime().device(index_), " and cpu! (", name, ")");
  }

  c10::IValue to_device(const c10::IValue& value) {
    if (value.isTensor()) {
      return to_device(value.toTensor());
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorList()) {
        list.push_back(to_device(tensor));
      }
      return list;
    }
    if (is_list_of_lists(value)) {
      return for_each_list(value, [&](const c10::IValue& list) { return to_device(list); });
    }
    return value;
  }

  // What the call has changed of a tensor beyond its bytes: shape and storage.
  void bring_back() {
    for (const auto& [device, host] : tensors_) {
      auto* to = device.unsafeGetTensorImpl();
      if (!device.storage().is_alias_of(device_storage(host.storage()))) {
        to->set_storage_keep_dtype(device_storage(host.storage()));
      }
      if (host.sizes() != device.sizes() || host.strides() != device.strides() ||
          host.storage_offset() != device.storage_offset()) {
        to->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
      }
    }
  }

 private:
  static bool is_list_of_lists(const c10::IValue& value) {
    return value.isList() && value.toList().elementType()->kind() == c10::TypeKind::ListType;
  }

  template <class Convert>
  static c10::IValue for_each_list(const c10::IValue& value, Convert convert) {
    c10::impl::GenericList lists(value.toList().elementType());
    for (const c10::IValue& list : value.toListRef()) {
      lists.push_back(convert(list));
    }
    return lists;
  }

  at::Tensor to_host(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return tensor;
    }
    if (!is_on_device(tensor)) {
      host_tensor_ |= tensor.dim() > 0;
      return tensor;
    }
    see(tensor.device().index());
    auto host = tensor_over(to_host(tensor.storage()), c10::DispatchKey::CPU, tensor);
    tensors_.emplace_back(tensor, host);
    return host;
  }

  c10::Storage to_host(const c10::Storage& storage) {
    if (storage.device_type() != runtime().type) {
      return storage;
    }
    for (const auto& [device, host] : storages_) {
      if (device.is_alias_of(storage)) {
        return host;
      }
    }
    storages_.emplace_back(storage, host_storage(storage));
    return storages_.back().second;
  }

  at::Tensor to_device(const at::Tensor& host) {
    if (!host.defined() || !host.device().is_cpu()) {
      return host;
    }
    for (const auto& [device, known] : tensors_) {
      if (known.is_same(host)) {
        return device;
      }
    }
    const auto storage = device_storage(host.storage());
    for (const auto& [device, known] : tensors_) {
      if (device.storage().is_alias_of(storage)) {
        return tensor_over(storage, runtime().key, host, device);
      }
    }
    return tensor_over(storage, runtime().key, host);
  }

  // The device's storage for one that a host kernel has worked on: the one it came from, or else a new one.
  c10::Storage device_storage(const c10::Storage& host) {
    for (const auto& [device, known] : storages_) {
      if (known.is_alias_of(host)) {
        if (host.data() != device.data()) { // resized by the kernel
          device.set_data_ptr_noswap(adopted(host));
          device.unsafeGetStorageImpl()->set_nbytes(host.nbytes());
        }
        return device;
      }
    }
    c10::Storage made(
        c10::Storage::use_byte_size_t(), host.nbytes(), adopted(host), &device_memory(), /*resizable=*/true);
    storages_.emplace_back(made, host);
    return made;
  }

  c10::DataPtr adopted(const c10::Storage& host) {
    c10::DataPtr kept(
        host.mutable_data(), new c10::Storage(host),
        [](void* context) { delete static_cast<c10::Storage*>(context); }, c10::Device(c10::kCPU));
    return device_memory().adopt(std::move(kept), host.nbytes(), index());
  }

  void see(DeviceIndex index) {
    runtime().check(index);
    TORCH_CHECK(
        index_ == -1 || index_ == index,
        "Expected all tensors to be on the same device, but found at least two devices, ", runtime().device(index_),
        " and ", runtime().device(index), "! (", op_.operator_name().name, ")");
    index_ = index;
  }

  const c10::OperatorHandle& op_;
  DeviceIndex index_ = -1;
  bool host_tensor_ = false;
  bool takes_generator_ = false;
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_; // of the device, of the host
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;
};

} // namespace acme
