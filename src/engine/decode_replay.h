// DecodeReplay: the operations of a pure decode step, recorded once and put to the device again as a whole
// while steps have the same shape. A replay computes what the operations one by one do, to the bit.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string_view>

#include "model/step.h"

namespace longspan::engine {

enum class ReplayMode : uint8_t {
  kNone,
  kFullDecodeOnly  // steps of decode rows alone, as a whole
};

// Who writes a step's inputs: the host, before it, or its own first operation (InputMirror::advance).
enum class InputWriter : uint8_t { kHost, kDevice };

// What one step's operations leave in the memory of the operations.
struct StepOutput {
  TensorView hidden;  // T [num_logits, H]
  TensorView logits;  // T [min(num_logits, kLogitRows), vocab]: of the first rows
};

// Why a step was not replayed; the first that holds.
enum class ReplayMiss : uint8_t {
  kSwitchedOff,
  kDevice,       // the backend does not record
  kPrefill,      // a prompt chunk is among the sequences
  kNotSampled,   // a row has no logits
  kCheckpoints,  // states are also written elsewhere
  kTapped,       // layers are looked at
  kTooMany,      // more sequences than kMaxReplaySeqs
  kFirst,        // the first steps of their shape
};
inline constexpr size_t kNumReplayMisses = 8;
std::string_view replay_miss(size_t i);  // "switched_off", ...; the name of misses[i]

struct ReplayCounters {
  int64_t num_replayed = 0;
  std::array<int64_t, kNumReplayMisses> misses{};
};

inline constexpr Index kMaxReplaySeqs = 16;

// Not thread-safe. `ops` outlives it.
class DecodeReplay final {
 public:
  DecodeReplay(ops::Ops& ops, ReplayMode mode) : ops_(ops), mode_(mode) {}

  // Runs `step`, or what it did when it was recorded. inputs: in the memory of the operations, at the same
  // addresses whenever the shapes are the same.
  StepOutput run(const model::StepInputs& inputs, InputWriter writer,
                 const std::function<StepOutput()>& step);

  const ReplayCounters& counters() const { return counters_; }

 private:
  struct Key {
    Index num_seqs;
    ops::AttentionPath path;
    InputWriter writer;
    auto operator<=>(const Key&) const = default;
  };
  struct Entry {
    std::vector<const void*> addresses;  // of the inputs
    std::unique_ptr<ops::Recording> recording;
    StepOutput output;
  };

  // Empty entries are made by a step that runs plainly, so that its workspace is there when it is recorded.
  StepOutput run_recordable(const model::StepInputs& inputs, InputWriter writer,
                            const std::function<StepOutput()>& step);
  StepOutput miss(ReplayMiss why, const std::function<StepOutput()>& step);

  ops::Ops& ops_;
  ReplayMode mode_;
  bool records_ = true;  // until the backend says no
  std::map<Key, Entry> entries_;
  ReplayCounters counters_;
};

}  // namespace longspan::engine
