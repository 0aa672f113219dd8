// FaultyBackend: a backend with a fault of a test's choice in front of a good one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "measure/op_call.h"

namespace longspan::testing {

// What is wrong. `run` runs an operation as it is; the fault may change its arguments before and its results
// after.
struct Fault {
  std::function<void(measure::OpCall& call, Index layer, const std::function<void()>& run)> on_op;
  // False: the copy is left out. The number counts copies of that size since the start.
  std::function<bool(size_t size_bytes, int number)> on_copy;
};

class FaultyBackend final : public measure::BackendFront {
 public:
  FaultyBackend(std::unique_ptr<ops::Backend> inner, Fault fault)
      : BackendFront(std::move(inner)), fault_(std::move(fault)) {}

  void copy(void* to, const void* from, size_t bytes) override {
    if (!fault_.on_copy || fault_.on_copy(bytes, counts_[bytes]++)) inner().copy(to, from, bytes);
  }

 protected:
  void run(const measure::OpCall& call) override {
    measure::OpCall changed = call;
    const auto run = [&] { measure::run_op(inner(), changed); };
    if (fault_.on_op)
      fault_.on_op(changed, layer(), run);
    else
      run();
  }

 private:
  Fault fault_;
  std::map<size_t, int> counts_;
};

}  // namespace longspan::testing
