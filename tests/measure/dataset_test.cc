// Prompts of a benchmark: exact lengths by the bundled model's tokenizer, no shared prefix, the first N of
// any N.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/error.h"
#include "measure/dataset.h"
#include "measure/prompt_text.h"

namespace longspan::measure {
namespace {

const std::string kTiny = std::string(LONGSPAN_SOURCE_DIR) + "/models/longspan-tiny";

const TokenCounter& tiny_counter() {
  static const TokenCounter counter = local_token_counter(kTiny, {});
  return counter;
}

std::vector<PromptGroup> dataset(DatasetOptions options, const TokenCounter& counter = tiny_counter()) {
  return make_dataset(options, counter);
}

// A file of the test's own, gone with it.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text)
      : path_(::testing::TempDir() + "/dataset-" + std::to_string(::getpid()) + ".jsonl") {
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Dataset, TextsHaveExactlyTheLengthAskedFor) {
  for (const int64_t length : {60, 61, 64, 127, 500, 1023, 2048}) {
    const auto groups =
        dataset({.num_prompts = 2, .num_warm_up = 1, .input_tokens = length, .output_tokens = 7});
    ASSERT_EQ(groups.size(), 1U);
    for (const auto* prompts : {&groups[0].measured, &groups[0].warm_up})
      for (const BenchPrompt& prompt : *prompts) {
        EXPECT_EQ(tiny_counter().count(prompt.text), length);
        EXPECT_EQ(prompt.num_tokens, length);
        EXPECT_EQ(prompt.max_output_tokens, 7);
      }
  }
}

TEST(TokenCounter, CountsWithTheTemplateVariablesOfTheRequests) {
  const auto count = [](const nlohmann::ordered_json& extra_body) {
    return local_token_counter(kTiny, {.extra_body = extra_body}).count("One two three.");
  };
  const auto thinking = [&](bool on) { return count({{"chat_template_kwargs", {{"enable_thinking", on}}}}); };
  EXPECT_EQ(thinking(false), count({{"top_k", 5}})) << "the template's default";
  EXPECT_NE(thinking(true), thinking(false)) << "an open block of thought, and a closed one";
}

TEST(Dataset, NoTwoPromptsShareAPrefix) {
  const auto groups = dataset({.num_prompts = 8, .num_warm_up = 8, .input_tokens = 200});
  std::set<std::string> openings;
  for (const auto* prompts : {&groups[0].measured, &groups[0].warm_up})
    for (const BenchPrompt& prompt : *prompts) openings.insert(prompt.text.substr(0, 8));
  EXPECT_EQ(openings.size(), 16U) << "the warm-up's differ from the measured ones, too";
}

TEST(Dataset, AShortRunIsAPartOfALongOne) {
  const auto few = dataset({.num_prompts = 2, .num_warm_up = 0, .input_tokens = 120});
  const auto many = dataset({.num_prompts = 4, .num_warm_up = 0, .input_tokens = 120});
  const auto other = dataset({.num_prompts = 2, .num_warm_up = 0, .input_tokens = 120, .seed = 1});
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(few[0].measured[i].text, many[0].measured[i].text);
    EXPECT_NE(few[0].measured[i].text, other[0].measured[i].text);
  }
}

TEST(Dataset, TooShortALengthSaysWhatIsNeeded) {
  try {
    dataset({.num_prompts = 1, .num_warm_up = 0, .input_tokens = 3});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kInvalid);
    EXPECT_NE(std::string(error.what()).find("need at least"), std::string::npos) << error.what();
  }
}

TEST(Dataset, BucketsAreTheContests) {
  const auto buckets = contest_buckets();
  ASSERT_EQ(buckets.size(), 3U);
  EXPECT_DOUBLE_EQ(buckets[0].weight, 0.2);
  EXPECT_DOUBLE_EQ(buckets[1].weight, 0.5);
  EXPECT_DOUBLE_EQ(buckets[2].weight, 0.3);
  EXPECT_EQ(bucket_length(buckets[0], 0), 6144);
  EXPECT_EQ(bucket_length(buckets[0], 1), 5120);
  EXPECT_EQ(bucket_length(buckets[0], 2), 7168);
  for (const ContestBucket& bucket : buckets)
    for (size_t i = 0; i < 100; ++i) {
      EXPECT_GT(bucket_length(bucket, i), bucket.min_tokens);
      EXPECT_LE(bucket_length(bucket, i), bucket.max_tokens);
    }
}

TEST(Dataset, WithoutACounterLengthsAreNotClaimed) {
  const auto groups = dataset({.num_prompts = 1, .num_warm_up = 0, .input_tokens = 500}, TokenCounter{});
  EXPECT_EQ(groups[0].measured[0].num_tokens, 0) << "the usage will tell";
  const int64_t really = tiny_counter().count(groups[0].measured[0].text);
  EXPECT_TRUE(really > 250 && really < 1000) << really << ": about right all the same";
}

TEST(Dataset, JsonlIsTakenInOrder) {
  const TemporaryFile file(
      "{\"prompt\": \"first\", \"output_tokens\": 5}\n\n{\"prompt\": \"second\"}\n{\"prompt\": \"third\"}\n");
  const auto groups =
      dataset({.kind = DatasetKind::kCustom, .path = file.path(), .num_prompts = 2, .num_warm_up = 2});
  ASSERT_EQ(groups[0].measured.size(), 2U);
  EXPECT_EQ(groups[0].measured[0].text, "first");
  EXPECT_EQ(groups[0].measured[0].max_output_tokens, 5);
  EXPECT_EQ(groups[0].measured[1].text, "second");
  EXPECT_EQ(groups[0].measured[1].max_output_tokens, 128);
  ASSERT_EQ(groups[0].warm_up.size(), 2U);
  EXPECT_EQ(groups[0].warm_up[0].text, "third") << "what lies behind the first N warms up";
  EXPECT_NE(groups[0].warm_up[1].text, "second") << "then prose; never a measured prompt";
  const auto fixed = dataset({.kind = DatasetKind::kCustom,
                              .path = file.path(),
                              .num_prompts = 1,
                              .num_warm_up = 0,
                              .output_tokens = 9});
  EXPECT_EQ(fixed[0].measured[0].max_output_tokens, 9) << "--output-len wins over the row";
}

TEST(Dataset, BadJsonlNamesTheLine) {
  const TemporaryFile file("{\"prompt\": \"first\"}\n{\"text\": \"second\"}\n");
  try {
    dataset({.kind = DatasetKind::kCustom, .path = file.path(), .num_prompts = 1, .num_warm_up = 0});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(":2: need a JSON object with a string \"prompt\""),
              std::string::npos)
        << error.what();
  }
}

TEST(Dataset, TooFewPromptsAreAnError) {
  const TemporaryFile file("{\"prompt\": \"only\"}\n");
  EXPECT_THROW(dataset({.kind = DatasetKind::kCustom, .path = file.path(), .num_prompts = 2}), Error);
  EXPECT_THROW(dataset({.kind = DatasetKind::kBuckets, .path = file.path(), .num_prompts = 1}), Error)
      << "no prompt of 4K and more";
}

}  // namespace
}  // namespace longspan::measure
