// What torch selects devices and orders work with. A device does all work at once, in the thread that asks for it: a
// stream is a number, and an event has happened as soon as it is recorded.
#pragma once

#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <chrono>

#include "runtime.h"

namespace acme {

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  using Clock = std::chrono::steady_clock;

  c10::DeviceType type() const override {
    return runtime().type;
  }

  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }

  c10::Device getDevice() const override {
    return runtime().device(current_device());
  }

  void setDevice(c10::Device device) const override {
    if (device.has_index()) { // without one, the current device is meant
      runtime().check(device.index());
      current_device() = device.index();
    }
  }

  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) {
      current_device() = device.index();
    }
  }

  DeviceIndex deviceCount() const noexcept override {
    return runtime().count;
  }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    return {};
  }

  // -- streams --

  c10::Stream getStream(c10::Device device) const override {
    const auto index = index_of(device);
    return stream(index, current_streams()[index]);
  }

  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream(index_of(device), 0);
  }

  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }

  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<c10::StreamId> last{0};
    return stream(index_of(device), ++last);
  }

  c10::Stream exchangeStream(c10::Stream next) const override {
    const auto before = getStream(next.device());
    current_streams()[next.device_index()] = next.id();
    return before;
  }

  bool queryStream(const c10::Stream&) const override {
    return true;
  }

  void synchronizeStream(const c10::Stream&) const override {}

  void synchronizeDevice(const DeviceIndex index) const override {
    runtime().check(index);
    ++runtime().synchronizations[index];
  }

  // -- events --

  void record(void** event, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Clock::time_point;
    }
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }

  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }

  void block(void*, const c10::Stream&) const override {}

  bool queryEvent(void*) const override {
    return true;
  }

  void synchronizeEvent(void*) const override {}

  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    TORCH_CHECK(first != nullptr && second != nullptr, "both events must be recorded");
    return std::chrono::duration<double, std::milli>(
               *static_cast<Clock::time_point*>(second) - *static_cast<Clock::time_point*>(first))
        .count();
  }

 private:
  static std::vector<c10::StreamId>& current_streams() {
    thread_local std::vector<c10::StreamId> ids(runtime().count, 0);
    return ids;
  }

  static DeviceIndex index_of(c10::Device device) {
    const auto index = device.has_index() ? device.index() : current_device();
    runtime().check(index);
    return index;
  }

  static c10::Stream stream(DeviceIndex index, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, runtime().device(index), id);
  }
};

} // namespace acme
