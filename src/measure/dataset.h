// Dataset: the prompts of a benchmark. The first N, never shuffled: prompt i is the same whatever N is, so
// that a short run is a part of a long one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "measure/bench_prompt.h"
#include "measure/token_counter.h"

namespace longspan::measure {

enum class DatasetKind : uint8_t {
  kText,     // built-in prose of --input-len tokens
  kCustom,   // JSONL with "prompt" and, if it likes, "output_tokens"
  kBuckets,  // the contest's three prompt lengths, of built-in prose or sorted out of a JSONL
};
DatasetKind dataset_from_name(const std::string& name);  // "text" or "random", "custom", "buckets"
const char* to_string(DatasetKind kind);

struct DatasetOptions {
  DatasetKind kind = DatasetKind::kText;
  std::string path;         // JSONL
  int64_t num_prompts = 5;  // of each bucket
  int64_t num_warm_up = 5;
  int64_t input_tokens = 1024;  // kText
  int64_t output_tokens = 0;    // 0: as a JSONL says, else kDefaultOutput (1024 for buckets, 128)
  uint64_t seed = 0;
};

struct ContestBucket {
  const char* name;
  int64_t min_tokens;  // above
  int64_t max_tokens;  // up to and with
  double weight;       // of the score: sum of weight * output tokens a second
};
std::span<const ContestBucket> contest_buckets();

// Prompts that are measured together. A set without buckets is one group of weight 1.
struct PromptGroup {
  std::string name;  // "all", "4K-8K"
  double weight = 1;
  std::vector<BenchPrompt> warm_up;  // of the same lengths, other texts
  std::vector<BenchPrompt> measured;
};

// Lengths inside a bucket: the bucket halved, then its halves, and so on, so that any first N are spread.
int64_t bucket_length(const ContestBucket& bucket, size_t index);

// Throws kInvalid, naming the line, for a JSONL that is malformed or too short, and what the texts throw.
std::vector<PromptGroup> make_dataset(const DatasetOptions& options, const TokenCounter& counter);

}  // namespace longspan::measure
