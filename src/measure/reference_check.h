// ReferenceCheck: a backend that runs every operation twice, on the backend behind it and on the reference,
// with the same inputs, and keeps how far the results lie apart. An operation is judged by itself: an error
// in front of it is in its inputs, and those both have.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "measure/op_call.h"

namespace longspan::measure {

// How far one result lies from the reference's.
struct OpError {
  Index layer = -1;            // of the model; -1: in front of the first layer or behind the last
  std::string op;              // "gated_delta"
  std::string output;          // "out", "K and V", "state", "history"
  double relative_l2 = 0;      // |got - want| / |want|
  double tolerance = 0;        // what rounding explains of it
  int64_t num_non_finite = 0;  // where the reference is finite
  std::string where;           // "heads 2, 3 of 6", "slot 130"

  std::string text() const;  // "layer 3 attention: out is 0.012 from the reference (heads 2, 3 of 6)"
};

// What a check has seen. Filled by the engine's thread; read when no request runs.
struct OpReport {
  std::atomic<bool> active = false;  // set around what is to be checked: not the warm-up
  Index max_rows = 1 << 20;          // of products and other row-wise operations: this many are compared
  int64_t num_calls = 0;
  std::map<std::string, OpError> worst;  // by operation, its largest error
  std::optional<OpError> first;          // past its tolerance, in the order of computation
};

// |got - want| / |want| that rounding explains, for results in `dtype`. Packed weights (4 bits, FP8) are
// rounded to it once more when they are unpacked; the reference multiplies the numbers that the codes stand
// for.
double op_tolerance(DType dtype, bool packed_weight);

class ReferenceCheck final : public BackendFront {
 public:
  ReferenceCheck(std::unique_ptr<ops::Backend> inner, std::shared_ptr<OpReport> report);

  // Weights are kept twice, in the form of either backend.
  std::unique_ptr<ops::Weight> pack(std::span<const TensorView> parts, DType dtype) override;
  std::unique_ptr<ops::Weight> pack_gate_up(const TensorView& gate, const TensorView& up,
                                            DType dtype) override;
  std::unique_ptr<ops::Weight> pack_quantized(Parts parts, DType dtype) override;
  std::unique_ptr<ops::Weight> pack_quantized_gate_up(const ops::WeightPart& gate, const ops::WeightPart& up,
                                                      DType dtype) override;
  // The reference needs the numbers: the caller draws them.
  std::unique_ptr<ops::Weight> pack_random(std::span<const ops::RandomRows>, Index, DType, DType,
                                           float) override {
    return nullptr;
  }

 protected:
  void run(const OpCall& call) override;

 private:
  // All three in host memory.
  void compare(OpCall got, OpCall want, OpCall before, bool packed_weight);
  void add(OpError error);

  std::unique_ptr<ops::Backend> reference_;
  std::shared_ptr<OpReport> report_;
};

}  // namespace longspan::measure
