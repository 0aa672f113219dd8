// OpTrace: a mark of every result of a run, so that two runs which ought to give the same bits can be laid
// side by side: the first operation that differs is the one to look at.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "measure/op_call.h"

namespace longspan::measure {

// One operation. Marks are hashes of bytes.
struct OpMark {
  Index layer = -1;
  std::string_view op;
  uint64_t before = 0;  // of the recurrent states it began from; 0: it has none, or began at position 0
  uint64_t after = 0;   // of its results
};

struct TracedStep {
  Index num_tokens = 0;
  std::vector<OpMark> marks;
};

struct OpTrace {
  std::atomic<bool> active = false;
  std::vector<TracedStep> steps;  // filled by the engine's thread
};

class TracingBackend final : public BackendFront {
 public:
  TracingBackend(std::unique_ptr<ops::Backend> inner, std::shared_ptr<OpTrace> trace)
      : BackendFront(std::move(inner)), trace_(std::move(trace)) {}

 protected:
  void run(const OpCall& call) override;

 private:
  std::shared_ptr<OpTrace> trace_;
};

// Where two steps of the same shape first differ: "layer 0 causal_conv begins from another state". None: they
// do not.
std::optional<std::string> first_difference(const TracedStep& one, const TracedStep& other);
// The same over all steps of two runs.
std::optional<std::string> first_difference(const OpTrace& one, const OpTrace& other);

}  // namespace longspan::measure
