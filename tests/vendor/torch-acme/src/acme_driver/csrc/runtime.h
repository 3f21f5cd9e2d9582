// The simulated devices of this process: how many there are, which is current, and their memory.
//
// One process simulates one type of device, which is chosen when the simulation starts: PrivateUse1 under a name of its
// own, or a type that torch knows and this machine lacks.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <vector>

namespace acme {

using c10::DeviceIndex;

struct Runtime {
  c10::DeviceType type = c10::DeviceType::PrivateUse1;
  c10::DispatchKey key = c10::DispatchKey::PrivateUse1;
  c10::DispatchKey autocast_key = c10::DispatchKey::AutocastPrivateUse1;
  DeviceIndex count = 0;
  size_t memory_per_device = 0;
  pid_t user = 0; // the process that has put something on a device; 0 for none
  std::vector<int64_t> synchronizations; // how often each device was waited for

  c10::Device device(DeviceIndex index) const {
    return {type, index};
  }

  void check(DeviceIndex index) const {
    TORCH_CHECK(
        index >= 0 && index < count,
        "no device ", static_cast<int>(index), " of type ", c10::DeviceTypeName(type, true), ", there are ",
        static_cast<int>(count));
  }

  // Something moves to a device. As on real hardware, a process forked from one that uses the devices cannot.
  void enter() {
    if (user == getpid()) {
      return;
    }
    TORCH_CHECK(
        user == 0, "cannot re-initialize ", c10::DeviceTypeName(type, true),
        " in a forked process; use the 'spawn' start method");
    user = getpid();
  }
};

inline Runtime& runtime() {
  static auto* instance = new Runtime; // never destroyed: tensors may outlive static objects
  return *instance;
}

inline DeviceIndex& current_device() {
  thread_local DeviceIndex index = 0;
  return index;
}

// Memory of the devices is memory of the host, counted for the device that it stands for.
class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    auto& cpu = *c10::GetCPUAllocator();
    const auto device = current_device();
    reserve(device, nbytes); // refused before the host is asked
    return wrap(cpu.allocate(nbytes), nbytes, device);
  }

  // Memory that an operator's host kernel has allocated becomes the device's.
  c10::DataPtr adopt(c10::DataPtr host, size_t nbytes, DeviceIndex device) {
    reserve(device, nbytes);
    return wrap(std::move(host), nbytes, device);
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr; // a block has a context: its pointer alone can't be given back
  }

  void copy_data(void* target, const void* source, size_t nbytes) const override {
    default_copy_data(target, source, nbytes);
  }

  bool initialized() override {
    return runtime().user != 0;
  }

  void emptyCache(c10::MempoolId_t) override {} // there is none: memory goes back to the host at once

  void recordStream(const c10::DataPtr&, c10::Stream) override {}

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats(device);
  }

  void resetAccumulatedStats(DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto* stat : counted(stats(device))) {
      stat->reset_accumulated();
    }
  }

  void resetPeakStats(DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto* stat : counted(stats(device))) {
      stat->reset_peak();
    }
  }

  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto total = runtime().memory_per_device;
    return {total - static_cast<size_t>(aggregate(stats(device).allocated_bytes).current), total};
  }

 private:
  using Stats = c10::CachingDeviceAllocator::DeviceStats;
  using Stat = c10::CachingAllocator::Stat;

  struct Block {
    c10::DataPtr host;
    size_t nbytes;
    DeviceIndex device;
  };

  static Stat& aggregate(c10::CachingAllocator::StatArray& stats) {
    return stats[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  }

  // The number of allocations, then what is counted in bytes.
  static std::vector<Stat*> counted(Stats& stats) {
    return {
        &aggregate(stats.allocation),
        &aggregate(stats.allocated_bytes),
        &aggregate(stats.reserved_bytes),
        &aggregate(stats.active_bytes),
        &aggregate(stats.requested_bytes)};
  }

  Stats& stats(DeviceIndex device) {
    runtime().check(device);
    if (stats_.empty()) {
      stats_.resize(runtime().count);
    }
    return stats_[device];
  }

  void reserve(DeviceIndex device, size_t nbytes) {
    runtime().enter();
    std::lock_guard<std::mutex> lock(mutex_);
    auto& of_device = stats(device);
    const auto used = static_cast<size_t>(aggregate(of_device.allocated_bytes).current);
    if (used + nbytes > runtime().memory_per_device) {
      of_device.num_ooms += 1;
      TORCH_CHECK_WITH(
          OutOfMemoryError, false, c10::DeviceTypeName(runtime().type, true), ":", static_cast<int>(device),
          " out of memory: ", nbytes, " bytes wanted, ", used, " of ", runtime().memory_per_device, " in use");
    }
    for (auto* stat : counted(of_device)) {
      stat->increase(stat == &aggregate(of_device.allocation) ? 1 : nbytes);
    }
  }

  c10::DataPtr wrap(c10::DataPtr host, size_t nbytes, DeviceIndex device) {
    void* data = host.get();
    return {data, new Block{std::move(host), nbytes, device}, &DeviceMemory::release, runtime().device(device)};
  }

  static void release(void* context);

  std::mutex mutex_;
  std::vector<Stats> stats_;
};

inline DeviceMemory& device_memory() {
  static auto* instance = new DeviceMemory;
  return *instance;
}

inline void DeviceMemory::release(void* context) {
  auto* block = static_cast<Block*>(context);
  auto& memory = device_memory();
  {
    std::lock_guard<std::mutex> lock(memory.mutex_);
    auto& of_device = memory.stats(block->device);
    for (auto* stat : counted(of_device)) {
      stat->decrease(stat == &aggregate(of_device.allocation) ? 1 : block->nbytes);
    }
  }
  delete block;
}

// Host memory that passes for pinned: ordinary memory, whose addresses are remembered.
class PinnedMemory final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    auto host = c10::GetCPUAllocator()->allocate(nbytes);
    void* data = host.get();
    if (data != nullptr) {
      std::lock_guard<std::mutex> lock(mutex_);
      ranges_[data] = nbytes;
    }
    return {data, new c10::DataPtr(std::move(host)), &PinnedMemory::release, c10::Device(c10::kCPU)};
  }

  bool holds(const void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto after = ranges_.upper_bound(data);
    if (after == ranges_.begin()) {
      return false;
    }
    const auto& [begin, nbytes] = *std::prev(after);
    return data < static_cast<const char*>(begin) + nbytes;
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }

  void copy_data(void* target, const void* source, size_t nbytes) const override {
    default_copy_data(target, source, nbytes);
  }

  bool record_event(void*, void*, c10::Stream) override {
    return true; // nothing is ever under way
  }

  void empty_cache() override {}

  at::HostStats get_stats() override {
    return {};
  }

  void reset_accumulated_stats() override {}

  void reset_peak_stats() override {}

 private:
  static void release(void* context);

  std::mutex mutex_;
  std::map<const void*, size_t> ranges_;
};

inline PinnedMemory& pinned_memory() {
  static auto* instance = new PinnedMemory;
  return *instance;
}

inline void PinnedMemory::release(void* context) {
  auto* host = static_cast<c10::DataPtr*>(context);
  auto& memory = pinned_memory();
  {
    std::lock_guard<std::mutex> lock(memory.mutex_);
    memory.ranges_.erase(host->get());
  }
  delete host;
}

} // namespace acme
