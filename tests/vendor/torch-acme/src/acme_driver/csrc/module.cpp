// What Python sees of the simulated devices.

#include <torch/csrc/utils/pybind.h>

#include "autocast.h"
#include "autograd.h"
#include "collectives.h"
#include "hooks.h"
#include "kernels.h"

namespace acme {

// The keys under which torch looks for the kernels of a type of device.
std::pair<c10::DispatchKey, c10::DispatchKey> keys_of(c10::DeviceType type) {
  switch (type) {
    case c10::DeviceType::PrivateUse1:
      return {c10::DispatchKey::PrivateUse1, c10::DispatchKey::AutocastPrivateUse1};
    case c10::DeviceType::HPU:
      return {c10::DispatchKey::HPU, c10::DispatchKey::AutocastHPU};
    case c10::DeviceType::IPU:
      return {c10::DispatchKey::IPU, c10::DispatchKey::AutocastIPU};
    case c10::DeviceType::XLA:
      return {c10::DispatchKey::XLA, c10::DispatchKey::AutocastXLA};
    case c10::DeviceType::MPS:
      return {c10::DispatchKey::MPS, c10::DispatchKey::AutocastMPS};
    case c10::DeviceType::XPU:
      return {c10::DispatchKey::XPU, c10::DispatchKey::AutocastXPU};
    default:
      TORCH_CHECK(false, "a device of type ", c10::DeviceTypeName(type, true), " can't be simulated");
  }
}

void start(const c10::Device& device, int count, size_t memory_per_device) {
  auto& state = runtime();
  TORCH_CHECK(state.memory_per_device == 0, "this process simulates devices already");
  TORCH_CHECK(!c10::impl::hasDeviceGuardImpl(device.type()), "torch has devices of type ", device.type(), " itself");
  std::tie(state.key, state.autocast_key) = keys_of(device.type());
  state.type = device.type();
  state.count = static_cast<DeviceIndex>(count);
  state.memory_per_device = memory_per_device;
  state.synchronizations.resize(count, 0);
  c10::SetAllocator(state.type, &device_memory());
  at::setHostAllocator(state.type, &pinned_memory());
  c10::impl::registerDeviceGuard(state.type, new Guard);
  TORCH_CHECK(
      register_hooks().deviceCount() == state.count, "torch has been asked for devices of type ", device.type(),
      " in this process before: simulate them first");
  register_kernels();
  register_autocast();
  register_timer();
}

c10::CachingAllocator::Stat allocated_bytes(DeviceIndex device) {
  return device_memory().getDeviceStats(device).allocated_bytes[0];
}

} // namespace acme

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using acme::runtime;
  using namespace pybind11::literals; // the names of arguments
  m.def("start", &acme::start, "device"_a, "count"_a, "memory_per_device"_a);
  m.def("current_device", [] { return static_cast<int>(acme::current_device()); });
  m.def("set_device", [](int index) {
    runtime().check(static_cast<c10::DeviceIndex>(index));
    acme::current_device() = static_cast<c10::DeviceIndex>(index);
  });
  m.def("in_use_by", [] { return static_cast<int>(runtime().user); }, "The process that uses the devices; 0 for none.");
  m.def("init", [] { runtime().enter(); });
  m.def("synchronize", [](int index) { acme::Guard().synchronizeDevice(static_cast<c10::DeviceIndex>(index)); });
  m.def("synchronizations", [](int index) {
    runtime().check(static_cast<c10::DeviceIndex>(index));
    return runtime().synchronizations[index];
  });
  m.def("default_generator", [](int index) { return acme::default_generator(static_cast<c10::DeviceIndex>(index)); });
  m.def("await_autograd_threads", &acme::await_autograd_threads, py::call_guard<py::gil_scoped_release>());
  m.def("memory_allocated", [](int index) {
    return acme::allocated_bytes(static_cast<c10::DeviceIndex>(index)).current;
  });
  m.def("max_memory_allocated", [](int index) {
    return acme::allocated_bytes(static_cast<c10::DeviceIndex>(index)).peak;
  });
  m.def("reset_peak_memory_stats", [](int index) {
    acme::device_memory().resetPeakStats(static_cast<c10::DeviceIndex>(index));
  });
  m.def("mem_get_info", [](int index) {
    return acme::device_memory().getMemoryInfo(static_cast<c10::DeviceIndex>(index));
  });
  py::class_<acme::Accl, c10d::Backend, c10::intrusive_ptr<acme::Accl>>(m, "Accl")
      .def(py::init<c10::intrusive_ptr<c10d::Backend>, std::string>(), "gloo"_a, "name"_a);
}
