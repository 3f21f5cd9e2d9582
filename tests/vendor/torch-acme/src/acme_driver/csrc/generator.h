// Random numbers of a device: a generator of the host's kind, apart from the host's own.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include "runtime.h"

namespace acme {

class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  explicit DeviceGenerator(DeviceIndex index, uint64_t seed = c10::default_rng_seed_val)
      : GeneratorImpl(runtime().device(index), c10::DispatchKeySet(runtime().key)),
        host_(at::detail::createCPUGenerator(seed)) {}

  // What the host's kernels draw from.
  const at::Generator& host() const {
    return host_;
  }

  void set_current_seed(uint64_t seed) override {
    host_.set_current_seed(seed);
  }

  uint64_t current_seed() const override {
    return host_.current_seed();
  }

  uint64_t seed() override {
    return host_.seed();
  }

  void set_offset(uint64_t offset) override {
    host_.set_offset(offset);
  }

  uint64_t get_offset() const override {
    return host_.get_offset();
  }

  void set_state(const c10::TensorImpl& state) override {
    host_.unsafeGetGeneratorImpl()->set_state(state);
  }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host_.unsafeGetGeneratorImpl()->get_state();
  }

 private:
  DeviceGenerator* clone_impl() const override {
    auto* copy = new DeviceGenerator(device().index());
    copy->host_ = host_.clone();
    return copy;
  }

  at::Generator host_;
};

// The generator that a device draws from when none is given.
inline const at::Generator& default_generator(DeviceIndex index) {
  static auto* generators = [] {
    auto* made = new std::vector<at::Generator>;
    for (DeviceIndex i = 0; i < runtime().count; ++i) {
      made->push_back(at::make_generator<DeviceGenerator>(i));
    }
    return made;
  }();
  const auto wanted = index == -1 ? current_device() : index;
  runtime().check(wanted);
  return (*generators)[wanted];
}

inline const at::Generator& host_generator(const at::Generator& generator) {
  return static_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl())->host();
}

// While it lives, kernels that take no generator draw from a device's: the host's own holds that state.
class BorrowedHostGenerator {
 public:
  explicit BorrowedHostGenerator(const at::Generator& generator)
      : generator_(generator), host_(at::detail::getDefaultCPUGenerator()), before_(host_.get_state()) {
    host_.set_state(generator_.get_state());
  }

  BorrowedHostGenerator(const BorrowedHostGenerator&) = delete;
  BorrowedHostGenerator& operator=(const BorrowedHostGenerator&) = delete;

  ~BorrowedHostGenerator() {
    generator_.set_state(host_.get_state());
    host_.set_state(before_);
  }

 private:
  at::Generator generator_;
  at::Generator host_;
  at::Tensor before_;
};

} // namespace acme
