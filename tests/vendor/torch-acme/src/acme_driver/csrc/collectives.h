// ACCL, the collectives of the devices: gloo over the memory that they share with the host.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "tensors.h"

namespace acme {

// Work of gloo, whose results are the device's tensors. A host that waits for it has them.
class AcclWork final : public c10d::Work {
 public:
  AcclWork(c10::intrusive_ptr<c10d::Work> gloo, std::vector<at::Tensor> results)
      : gloo_(std::move(gloo)), results_(std::move(results)) {}

  bool isCompleted() override {
    return gloo_->isCompleted();
  }

  bool isSuccess() const override {
    return gloo_->isSuccess();
  }

  std::exception_ptr exception() const override {
    return gloo_->exception();
  }

  int sourceRank() const override {
    return gloo_->sourceRank();
  }

  std::vector<at::Tensor> result() override {
    return results_;
  }

  bool wait(std::chrono::milliseconds timeout) override {
    return gloo_->wait(timeout);
  }

  void synchronize() override {
    gloo_->wait();
  }

  void abort() override {
    gloo_->abort();
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    std::vector<c10::Device> devices;
    for (const auto& tensor : results_) {
      if (is_on_device(tensor)) {
        devices = {tensor.device()};
      }
    }
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::move(devices));
    gloo_->getFuture()->addCallback([future, results = results_](c10::ivalue::Future& done) {
      if (done.hasError()) {
        future->setError(done.exception_ptr());
      } else {
        future->markCompleted(results);
      }
    });
    return future;
  }

 private:
  c10::intrusive_ptr<c10d::Work> gloo_;
  std::vector<at::Tensor> results_;
};

class Accl final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<std::vector<at::Tensor>>;
  using Result = c10::intrusive_ptr<c10d::Work>;

  Accl(c10::intrusive_ptr<c10d::Backend> gloo, std::string name)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), name_(std::move(name)) {}

  const std::string getBackendName() const override {
    return name_;
  }

  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<Options>(name_);
  }

  void setTimeout(std::chrono::milliseconds timeout) override {
    gloo_->setTimeout(timeout);
  }

  void setSequenceNumberForGroup() override {
    gloo_->setSequenceNumberForGroup();
  }

  uint64_t getSequenceNumberForGroup() override {
    return gloo_->getSequenceNumberForGroup();
  }

  Result broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    auto host = host_views(tensors);
    return done(gloo_->broadcast(host, options), tensors);
  }

  Result allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    auto host = host_views(tensors);
    return done(gloo_->allreduce(host, options), tensors);
  }

  Result allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    auto host = host_views(tensors);
    return done(gloo_->allreduce_coalesced(host, options), tensors);
  }

  Result reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    auto host = host_views(tensors);
    return done(gloo_->reduce(host, options), tensors);
  }

  Result allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto to = lists(outputs);
    auto from = host_views(inputs);
    return done(gloo_->allgather(to, from, options), flat(outputs));
  }

  Result _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    auto to = host_view(output);
    auto from = host_view(input);
    return done(gloo_->_allgather_base(to, from, options), {output});
  }

  Result allgather_coalesced(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto to = lists(outputs);
    auto from = host_views(inputs);
    return done(gloo_->allgather_coalesced(to, from, options), flat(outputs));
  }

  Result allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto to = host_views(outputs);
    auto from = host_views(inputs);
    return done(gloo_->allgather_into_tensor_coalesced(to, from, options), outputs);
  }

  Result gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    auto to = lists(outputs);
    auto from = host_views(inputs);
    return done(gloo_->gather(to, from, options), flat(outputs));
  }

  Result scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override {
    auto to = host_views(outputs);
    auto from = lists(inputs);
    return done(gloo_->scatter(to, from, options), outputs);
  }

  Result reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& options) override {
    auto to = host_views(outputs);
    auto from = lists(inputs);
    return done(gloo_->reduce_scatter(to, from, options), outputs);
  }

  Result _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    auto to = host_view(output);
    auto from = host_view(input);
    return done(gloo_->_reduce_scatter_base(to, from, options), {output});
  }

  Result reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
    auto to = host_views(outputs);
    auto from = host_views(inputs);
    return done(gloo_->reduce_scatter_tensor_coalesced(to, from, options), outputs);
  }

  Result alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_sizes,
      std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& options) override {
    auto to = host_view(output);
    auto from = host_view(input);
    return done(gloo_->alltoall_base(to, from, output_sizes, input_sizes, options), {output});
  }

  Result alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    auto to = host_views(outputs);
    auto from = host_views(inputs);
    return done(gloo_->alltoall(to, from, options), outputs);
  }

  Result send(Tensors& tensors, int to, int tag) override {
    auto host = host_views(tensors);
    return done(gloo_->send(host, to, tag), tensors);
  }

  Result recv(Tensors& tensors, int from, int tag) override {
    auto host = host_views(tensors);
    return done(gloo_->recv(host, from, tag), tensors);
  }

  Result recvAnysource(Tensors& tensors, int tag) override {
    auto host = host_views(tensors);
    return done(gloo_->recvAnysource(host, tag), tensors);
  }

  Result barrier(const c10d::BarrierOptions& options) override {
    return gloo_->barrier(options);
  }

 private:
  static Lists lists(const Lists& tensors) {
    Lists views;
    for (const auto& list : tensors) {
      views.push_back(host_views(list));
    }
    return views;
  }

  static Tensors flat(const Lists& tensors) {
    Tensors all;
    for (const auto& list : tensors) {
      all.insert(all.end(), list.begin(), list.end());
    }
    return all;
  }

  static Result done(Result gloo, Tensors results) {
    return c10::make_intrusive<AcclWork>(std::move(gloo), std::move(results));
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
  std::string name_;
};

// With which DistributedDataParallel measures its steps: nothing outlasts the call, so the host's clock is right.
class StepTimer final : public c10d::Timer {
 public:
  explicit StepTimer(c10::Device) {}

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto first = getTimeRef(start);
    const auto last = getTimeRef(end);
    if (first == c10d::kUnsetTime || last == c10d::kUnsetTime || last < first) {
      return std::nullopt;
    }
    return last - first;
  }
};

inline void register_timer() {
  c10d::TimerRegistry()->Register(
      runtime().type, [](c10::Device device) -> std::unique_ptr<c10d::Timer> {
        return std::make_unique<StepTimer>(device);
      });
}

} // namespace acme
