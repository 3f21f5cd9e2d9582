// What torch asks of a type of device in general. The questions are the same for every type, the base class is not.
#pragma once

#include <ATen/detail/HPUHooksInterface.h>
#include <ATen/detail/IPUHooksInterface.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/detail/XLAHooksInterface.h>
#include <ATen/detail/XPUHooksInterface.h>

#include "generator.h"
#include "guard.h"
#include "runtime.h"

namespace acme {

template <class Base>
struct Hooks : public Base {
  bool isBuilt() const override {
    return true;
  }

  bool isAvailable() const override {
    return runtime().count > 0;
  }

  bool hasPrimaryContext(DeviceIndex) const override {
    return runtime().user == getpid();
  }

  void init() const override {
    runtime().enter();
  }

  DeviceIndex deviceCount() const override {
    return runtime().count;
  }

  void setCurrentDevice(DeviceIndex index) const override {
    runtime().check(index);
    current_device() = index;
  }

  DeviceIndex getCurrentDevice() const override {
    return current_device();
  }

  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    const auto before = current_device();
    setCurrentDevice(index);
    return before;
  }

  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return index < 0 ? current_device() : exchangeDevice(index);
  }

  bool isPinnedPtr(const void* data) const override {
    return pinned_memory().holds(data);
  }

  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_memory();
  }

  c10::Device getDeviceFromPtr(void*) const override {
    return runtime().device(current_device()); // host memory doesn't tell
  }

  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return default_generator(index);
  }

  at::Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<DeviceGenerator>(index == -1 ? current_device() : index);
  }
};

struct PrivateUse1Hooks final : public Hooks<at::PrivateUse1HooksInterface> {
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    const auto device = storage.device().index();
    const c10::DeviceGuard guard(runtime().device(device));
    auto data = device_memory().allocate(nbytes);
    device_memory().copy_data(data.get(), storage.data(), std::min(nbytes, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(nbytes);
  }
};

struct HPUHooks final : public Hooks<at::HPUHooksInterface> {
  bool hasHPU() const override {
    return isAvailable();
  }
};

struct XLAHooks final : public Hooks<at::XLAHooksInterface> {
  bool hasXLA() const override {
    return isAvailable();
  }
};

struct XPUHooks final : public Hooks<at::XPUHooksInterface> {
  bool hasXPU() const override {
    return isAvailable();
  }

  DeviceIndex getNumGPUs() const override {
    return deviceCount();
  }

  DeviceIndex current_device() const override {
    return getCurrentDevice();
  }

  void deviceSynchronize(DeviceIndex index) const override {
    Guard().synchronizeDevice(index);
  }
};

struct IPUHooks final : public Hooks<at::IPUHooksInterface> {};

struct MPSHooks final : public Hooks<at::MPSHooksInterface> {
  bool hasMPS() const override {
    return isAvailable();
  }

  bool isOnMacOSorNewer(unsigned, unsigned) const override {
    return true;
  }

  c10::Allocator* getMPSDeviceAllocator() const override {
    return &device_memory();
  }

  void deviceSynchronize() const override {
    Guard().synchronizeDevice(0);
  }

  void commitStream() const override {}

  void emptyCache() const override {}

  size_t getCurrentAllocatedMemory() const override {
    const auto [free, total] = device_memory().getMemoryInfo(0);
    return total - free;
  }

  size_t getDriverAllocatedMemory() const override {
    return getCurrentAllocatedMemory();
  }

  size_t getRecommendedMaxMemory() const override {
    return runtime().memory_per_device;
  }

  void setMemoryFraction(double) const override {}
};

template <class T, class Base>
std::unique_ptr<Base> make() {
  return std::make_unique<T>();
}

// Torch makes the hooks of a type from a registry when it first asks for them, and keeps them.
inline const at::AcceleratorHooksInterface& register_hooks() {
  switch (runtime().type) {
    case c10::DeviceType::PrivateUse1:
      at::RegisterPrivateUse1HooksInterface(new PrivateUse1Hooks);
      return at::detail::getPrivateUse1Hooks();
    case c10::DeviceType::HPU:
      at::HPUHooksRegistry()->Register(
          "HPUHooks", [](at::HPUHooksArgs) { return make<HPUHooks, at::HPUHooksInterface>(); });
      return at::detail::getHPUHooks();
    case c10::DeviceType::XLA:
      at::XLAHooksRegistry()->Register("torch_xla::detail::XLAHooks", &make<XLAHooks, at::XLAHooksInterface>);
      return at::detail::getXLAHooks();
    case c10::DeviceType::XPU:
      at::XPUHooksRegistry()->Register("XPUHooks", &make<XPUHooks, at::XPUHooksInterface>);
      return at::detail::getXPUHooks();
    case c10::DeviceType::IPU:
      at::IPUHooksRegistry()->Register("IPUHooks", &make<IPUHooks, at::IPUHooksInterface>);
      return at::detail::getIPUHooks();
    case c10::DeviceType::MPS:
      at::MPSHooksRegistry()->Register("MPSHooks", &make<MPSHooks, at::MPSHooksInterface>);
      return at::detail::getMPSHooks();
    default:
      TORCH_CHECK(false, "a device of type ", c10::DeviceTypeName(runtime().type, true), " can't be simulated");
  }
}

} // namespace acme
