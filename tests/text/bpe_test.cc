#include "text/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>

namespace longspan::text {
namespace {

// Tokens 0..255 are the bytes; merge k makes token 256 + k.
struct Model {
  explicit Model(std::vector<std::pair<std::string, std::string>> pairs,
                 Bpe::WholeWords whole_words = Bpe::WholeWords::kIfMerged)
      : vocabulary(entries(pairs)), bpe(vocabulary, merges(pairs), whole_words) {}

  std::vector<Vocabulary::Entry> entries(const std::vector<std::pair<std::string, std::string>>& pairs) {
    for (int byte = 0; byte < 256; ++byte) strings.push_back(std::string(1, static_cast<char>(byte)));
    for (const auto& [left, right] : pairs) strings.push_back(left + right);
    std::vector<Vocabulary::Entry> result;
    for (size_t i = 0; i < strings.size(); ++i) result.push_back({static_cast<int32_t>(i), strings[i], true});
    return result;
  }
  std::vector<Merge> merges(const std::vector<std::pair<std::string, std::string>>& pairs) const {
    std::vector<Merge> result;
    for (const auto& [left, right] : pairs) {
      result.push_back({*vocabulary.find(left), *vocabulary.find(right), *vocabulary.find(left + right)});
    }
    return result;
  }
  std::vector<int32_t> encode(std::string_view piece) const {
    Bpe::Scratch scratch;
    std::vector<int32_t> ids;
    bpe.encode(vocabulary, piece, scratch, ids);
    return ids;
  }

  std::vector<std::string> strings;
  Vocabulary vocabulary;
  Bpe bpe;
};

using Ids = std::vector<int32_t>;

TEST(Bpe, LowestRankFirstThenLeftmost) {
  const Model model({{"b", "c"}, {"a", "b"}, {"a", "a"}, {"aa", "a"}});
  EXPECT_EQ(model.encode(""), Ids{});
  EXPECT_EQ(model.encode("x"), Ids{'x'});
  EXPECT_EQ(model.encode("abc"), (Ids{'a', 256})) << "bc before ab";
  EXPECT_EQ(model.encode("abab"), (Ids{257, 257}));
  EXPECT_EQ(model.encode("aaa"), Ids{259}) << "the left pair, then the rest";
  EXPECT_EQ(model.encode("aaaaa"), (Ids{258, 259})) << "aa aa a";
}

TEST(Bpe, ATokenThatMergingCannotReach) {
  // "abc" is in the vocabulary, but bc merges first and no merge joins a and bc.
  const std::vector<std::pair<std::string, std::string>> pairs{{"b", "c"}, {"a", "b"}, {"ab", "c"}};
  EXPECT_EQ(Model(pairs).encode("abc"), (Ids{'a', 256}));
  EXPECT_EQ(Model(pairs, Bpe::WholeWords::kAlways).encode("abc"), Ids{258}) << "ignore_merges";
  EXPECT_EQ(Model(pairs, Bpe::WholeWords::kAlways).encode("abcx"), (Ids{'a', 256, 'x'}));
}

// The definition, step by step: O(n^2), the oracle.
Ids encode_slowly(const std::vector<Merge>& merges, std::string_view piece) {
  std::map<std::pair<int32_t, int32_t>, size_t> ranks;
  for (size_t i = 0; i < merges.size(); ++i) ranks[{merges[i].left, merges[i].right}] = i;
  Ids ids;
  for (const char c : piece) ids.push_back(static_cast<uint8_t>(c));
  while (true) {
    size_t best_rank = merges.size();
    size_t best_idx = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto it = ranks.find({ids[i], ids[i + 1]});
      if (it != ranks.end() && it->second < best_rank) best_rank = it->second, best_idx = i;
    }
    if (best_rank == merges.size()) return ids;
    ids[best_idx] = merges[best_rank].merged;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best_idx) + 1);
  }
}

TEST(Bpe, AgreesWithTheDefinitionOnRandomModels) {
  std::mt19937 random(7);
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % limit); };
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> tokens{"a", "b", "c"};
    std::vector<std::pair<std::string, std::string>> pairs;
    while (pairs.size() < 12) {
      const std::string left = tokens[below(tokens.size())];
      const std::string right = tokens[below(tokens.size())];
      if (std::find(tokens.begin(), tokens.end(), left + right) != tokens.end()) continue;
      pairs.emplace_back(left, right);
      tokens.push_back(left + right);
    }
    const Model model(pairs);
    const std::vector<Merge> merges = model.merges(pairs);
    for (int i = 0; i < 20; ++i) {
      std::string piece;
      for (size_t size = below(40); piece.size() < size;) piece += "abc"[below(3)];
      ASSERT_EQ(model.encode(piece), encode_slowly(merges, piece)) << piece;
    }
  }
}

// With a list of candidates that is searched instead of a heap this takes 10^12 steps.
TEST(Bpe, AMegabyteInOneWord) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (size_t size = 1; size < 1024; size *= 2)
    pairs.emplace_back(std::string(size, 'a'), std::string(size, 'a'));
  const Ids ids = Model(pairs).encode(std::string(1'000'000, 'a'));
  // 976 tokens of 1,024 bytes and the binary digits of the rest, 576 = 512 + 64.
  EXPECT_EQ(ids.size(), 978u);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 256 + 9), 976);
  EXPECT_EQ(ids[976], 256 + 8);
  EXPECT_EQ(ids[977], 256 + 5);
}

}  // namespace
}  // namespace longspan::text
