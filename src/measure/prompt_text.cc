#include "measure/prompt_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "core/error.h"

namespace longspan::measure {
namespace {

constexpr double kTokensPerWord = 1.3;  // of English prose with a vocabulary of 100K and more
constexpr int kMaxGuesses = 12;
constexpr int64_t kMaxFill = 64;  // tokens that filler words make up for

template <size_t n>
using Words = std::array<const char*, n>;
constexpr Words<12> kWho = {"The engineer",    "A careful reader", "The harbour pilot", "Our librarian",
                            "The night nurse", "A young baker",    "The old miller",    "The surveyor",
                            "My neighbour",    "The ferryman",     "A quiet clerk",     "The gardener"};
constexpr Words<12> kDoes = {"writes down", "measures", "carries", "repairs", "counts",  "describes",
                             "compares",    "paints",   "sells",   "forgets", "returns", "admires"};
constexpr Words<12> kWhat = {"the broken clock",   "three blue boats",   "a map of the coast",
                             "the weekly report",  "seven heavy stones", "the garden wall",
                             "an unopened letter", "the long table",     "two copper kettles",
                             "the bridge",         "a basket of pears",  "the measured values"};
constexpr Words<12> kWhere = {
    "beside the river",        "in the town hall",     "near the station",        "under the lamp",
    "at the edge of the wood", "on the third floor",   "before the market opens", "after the rain",
    "behind the mill",         "between two meetings", "during the first snow",   "while the children sleep"};
constexpr Words<6> kFillers = {" a", " the", " and", ".", "\n", " I"};

uint64_t mix_bits(uint64_t value) {
  // The finaliser of MurmurHash3: every input bit reaches every output bit.
  value = (value ^ (value >> 33)) * 0xff51afd7ed558ccdULL;
  value = (value ^ (value >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return value ^ (value >> 33);
}

uint64_t key_hash(const TextKey& key) {
  uint64_t hash = mix_bits(key.seed + 1);
  for (const char c : key.bucket) hash = mix_bits(hash * 31 + static_cast<unsigned char>(c));
  hash = mix_bits(hash ^ mix_bits(static_cast<uint64_t>(key.round) + 0x1000));
  return mix_bits(hash ^ mix_bits(key.index + 0x2000000));
}

// The hash stands first: a cache that knows pages of 16 tokens finds no two alike.
std::string opening_line(const TextKey& key) {
  return fmt::format("{:08x} is the number of this text. Read it and write down what happens in it.\n",
                     key_hash(key) & 0xffffffff);
}

}  // namespace

PromptText::PromptText(const TextKey& key) : head_(opening_line(key)), state_(key_hash(key)) {}

void PromptText::add_sentence() {
  const auto pick = [this](const auto& list) -> std::string {
    state_ = mix_bits(state_ + 0x9e3779b97f4a7c15ULL);
    return list[state_ % list.size()];
  };
  std::string sentence = pick(kWho) + " " + pick(kDoes) + " " + pick(kWhat) + " " + pick(kWhere) + ".";
  for (size_t begin = 0; begin < sentence.size();) {
    const size_t end = std::min(sentence.find(' ', begin), sentence.size());
    words_.push_back(sentence.substr(begin, end - begin));
    begin = end + 1;
  }
}

std::string PromptText::with_words(size_t num_words) {
  while (words_.size() < num_words) add_sentence();
  std::string text = head_;
  for (size_t i = 0; i < num_words; ++i) text += (i == 0 ? "" : " ") + words_[i];
  return text;
}

std::string text_of_tokens(const TextKey& key, int64_t num_tokens, const TokenCounter& counter) {
  PromptText source(key);
  const int64_t shortest = counter.count(source.with_words(0));
  if (shortest > num_tokens)
    fail(ErrorKind::kInvalid,
         "got a prompt length of {} tokens, need at least {}: its first line and the chat "
         "template take so many",
         num_tokens, shortest);
  // Words that count as few tokens too few: guesses along the slope between the longest text known to be too
  // short and the shortest known to be too long.
  size_t low_words = 0;
  int64_t low_tokens = shortest;
  std::optional<size_t> high_words;
  double slope = kTokensPerWord;
  for (int guess = 0; guess < kMaxGuesses && num_tokens - low_tokens > kMaxFill / 8; ++guess) {
    const double step = static_cast<double>(num_tokens - low_tokens) / slope;
    size_t words = low_words + std::max<size_t>(1, static_cast<size_t>(step));
    if (high_words) words = std::min(words, *high_words - 1);
    if (words <= low_words) break;
    const int64_t tokens = counter.count(source.with_words(words));
    slope = std::max(0.1, static_cast<double>(tokens - shortest) / static_cast<double>(words));
    if (tokens == num_tokens) return source.with_words(words);
    if (tokens < num_tokens) {
      low_words = words;
      low_tokens = tokens;
    } else {
      high_words = words;
    }
  }
  const std::string text = source.with_words(low_words);
  const int64_t missing = num_tokens - low_tokens;
  if (missing == 0) return text;
  for (const char* filler : kFillers) {
    std::string filled = text;
    for (int64_t i = 0; i < missing; ++i) filled += filler;
    if (counter.count(filled) == num_tokens) return filled;
  }
  fail(ErrorKind::kUnsupported, "no text of exactly {} tokens found: {} missing after {} words", num_tokens,
       missing, low_words);
}

std::string text_of_about(const TextKey& key, int64_t num_tokens) {
  PromptText source(key);
  return source.with_words(static_cast<size_t>(static_cast<double>(num_tokens) / kTokensPerWord));
}

}  // namespace longspan::measure
