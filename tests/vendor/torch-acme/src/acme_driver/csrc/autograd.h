// The threads in which torch's autograd works on the devices.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <thread>

#include "runtime.h"

namespace acme {

// A node that a device's thread passes through: nothing comes of it.
struct Passage final : public torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    return {};
  }
};

// What tells whether autograd has threads: its queues, which only its own kind may see.
struct Threads final : public torch::autograd::Engine {
  static bool started(torch::autograd::Engine& engine) {
    return !(engine.*(&Threads::device_ready_queues_)).empty();
  }
};

// Pass through the thread of each device, which then has let go of everything before.
inline void pass_through_threads(torch::autograd::Engine& engine) {
  for (DeviceIndex index = 0; index < runtime().count; ++index) {
    // A tensor without memory, which takes no device into use.
    auto gradient = at::detail::make_tensor<c10::TensorImpl>(
        c10::DispatchKeySet(runtime().key), caffe2::TypeMeta::Make<float>(), runtime().device(index));
    auto node = c10::make_intrusive<Passage>();
    node->add_input_metadata(gradient);
    engine.execute(
        {torch::autograd::Edge(std::move(node), 0)}, {std::move(gradient)}, /*keep_graph=*/false,
        /*create_graph=*/false, /*accumulate_grad=*/true);
  }
}

// Wait until autograd's threads need Python no more; to be called before Python ends.
//
// A backward pass is over for its caller before the device's thread has let go of it, and of Python objects in it: the
// context variables that torch hands to every pass. The threads of other devices may not have begun yet, which takes
// Python too. A thread that comes for Python when that is ending ends the process, by SIGABRT.
inline void await_autograd_threads() {
  auto& engine = torch::autograd::Engine::get_default_engine();
  if (Threads::started(engine)) {
    // From a thread that has nothing of Python to hand over.
    std::thread(pass_through_threads, std::ref(engine)).join();
  }
}

} // namespace acme
