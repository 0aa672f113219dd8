#include "engine/decode_replay.h"

#include <algorithm>
#include <optional>

#include "core/log.h"

namespace longspan::engine {
namespace {

std::optional<ReplayMiss> refusal(const model::StepInputs& in) {
  if (in.seqs.num_decode_seqs != in.seqs.num_seqs || in.attention_runs.size() != 1)
    return ReplayMiss::kPrefill;
  if (in.logit_rows.dim(0) != in.seqs.num_seqs) return ReplayMiss::kNotSampled;
  for (const model::GroupInputs& group : in.groups)
    if (!group.checkpoints.empty()) return ReplayMiss::kCheckpoints;
  if (in.layer_tap) return ReplayMiss::kTapped;
  if (in.seqs.num_seqs > kMaxReplaySeqs) return ReplayMiss::kTooMany;
  return std::nullopt;
}

std::vector<const void*> addresses_of(const model::StepInputs& in) {
  std::vector<const void*> list = {in.token_ids.data, in.positions.data, in.seqs.query_start_loc.data,
                                   in.seqs.seq_lens.data, in.logit_rows.data};
  for (const model::GroupInputs& group : in.groups)
    list.insert(list.end(), {group.block_table.data, group.slots.data, group.state_pages.data});
  return list;
}

}  // namespace

std::string_view replay_miss(size_t i) {
  constexpr std::string_view kNames[] = {"switched_off", "device", "prefill",  "not_sampled",
                                         "checkpoints",  "tapped", "too_many", "first"};
  static_assert(std::size(kNames) == kNumReplayMisses);
  return i < kNumReplayMisses ? kNames[i] : "";
}

StepOutput DecodeReplay::run(const model::StepInputs& inputs, InputWriter writer,
                             const std::function<StepOutput()>& step) {
  if (mode_ == ReplayMode::kNone) return miss(ReplayMiss::kSwitchedOff, step);
  if (!records_) return miss(ReplayMiss::kDevice, step);
  if (const std::optional<ReplayMiss> why = refusal(inputs)) return miss(*why, step);
  return run_recordable(inputs, writer, step);
}

StepOutput DecodeReplay::run_recordable(const model::StepInputs& inputs, InputWriter writer,
                                        const std::function<StepOutput()>& step) {
  const auto [at, is_new] =
      entries_.try_emplace(Key{inputs.seqs.num_seqs, inputs.attention_runs.front().path, writer});
  Entry& entry = at->second;
  std::vector<const void*> addresses = addresses_of(inputs);
  if (is_new || entry.addresses != addresses) {
    entry.addresses = std::move(addresses);
    entry.recording = nullptr;
    return miss(ReplayMiss::kFirst, step);
  }
  if (entry.recording == nullptr) {
    entry.recording = ops_.record([&] { entry.output = step(); });
    if (entry.recording == nullptr) {
      records_ = false;
      return miss(ReplayMiss::kDevice, step);
    }
    log(LogLevel::kInfo, "decode steps of {} sequences: recorded", inputs.seqs.num_seqs);
  }
  if (!entry.recording->replay()) {
    entries_.erase(at);
    return miss(ReplayMiss::kFirst, step);
  }
  ++counters_.num_replayed;
  return entry.output;
}

StepOutput DecodeReplay::miss(ReplayMiss why, const std::function<StepOutput()>& step) {
  ++counters_.misses[static_cast<size_t>(why)];
  return step();
}

}  // namespace longspan::engine
