#include "text/grammar/constrained_answer.h"

#include <algorithm>
#include <utility>

namespace longspan::text {
namespace {

constexpr std::string_view kReasoningEnd = "</think>";

void set_bit(int32_t token, TokenMask& mask) {
  mask[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64);
}
void clear_bit(int32_t token, TokenMask& mask) {
  mask[static_cast<size_t>(token) / 64] &= ~(uint64_t{1} << (token % 64));
}

}  // namespace

ConstrainedAnswer::ConstrainedAnswer(std::shared_ptr<TokenMasks> masks, std::vector<int32_t> end_tokens,
                                     int64_t vocab_size, bool in_reasoning)
    : masks_(std::move(masks)),
      end_tokens_(std::move(end_tokens)),
      mask_((static_cast<size_t>(std::max<int64_t>(vocab_size, masks_->trie().vocab_size())) + 63) / 64),
      runner_(masks_->grammar()),
      in_reasoning_(in_reasoning) {
  const Grammar& grammar = masks_->grammar();
  runner_.enter(in_reasoning ? grammar.start_of_line() : grammar.start(), threads_);
}

std::span<const uint64_t> ConstrainedAnswer::allowed() {
  if (std::exchange(mask_is_current_, true)) return mask_;
  std::fill(mask_.begin(), mask_.end(), 0);
  if (in_reasoning_) {
    allow_reasoning();
    return mask_;
  }
  masks_->add(runner_, threads_, mask_);
  const bool stuck = std::all_of(mask_.begin(), mask_.end(), [](uint64_t word) { return word == 0; });
  if (threads_.returned || stuck)
    for (const int32_t token : end_tokens_) set_bit(token, mask_);
  return mask_;
}

// Text, and </think>. Where a token goes on behind the last byte of </think>, the rest must fit the grammar.
void ConstrainedAnswer::allow_reasoning() {
  const TokenTrie& trie = masks_->trie();
  for (const int32_t token : trie.tokens()) set_bit(token, mask_);
  for (const TokenTrie::Markup& markup : trie.markup())
    if (markup.bytes == kReasoningEnd) set_bit(markup.token, mask_);
  for (size_t size = 0; size < kReasoningEnd.size(); ++size) {
    if (!tail_.ends_with(kReasoningEnd.substr(0, size))) continue;
    const auto node = trie.find(kReasoningEnd.substr(size));
    if (!node) continue;
    for (const int32_t token : trie.tokens_below(*node)) clear_bit(token, mask_);
    masks_->add_below(runner_, threads_, *node, mask_);
  }
}

void ConstrainedAnswer::push(int32_t token) {
  if (std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end()) return;
  const std::string_view bytes = masks_->trie().token_bytes(token);
  if (in_reasoning_)
    push_reasoning(bytes);
  else if (push_bytes(bytes))
    mask_is_current_ = false;
}

void ConstrainedAnswer::push_reasoning(std::string_view bytes) {
  const bool had_tail = tail_.find('<') != tail_.npos;
  tail_ += bytes;
  const size_t end = tail_.find(kReasoningEnd);
  if (end != tail_.npos) {
    in_reasoning_ = false;
    mask_is_current_ = false;
    push_bytes(std::string_view(tail_).substr(end + kReasoningEnd.size()));
    return;
  }
  tail_.erase(0, tail_.size() - std::min(tail_.size(), kReasoningEnd.size() - 1));
  if (had_tail || tail_.find('<') != tail_.npos) mask_is_current_ = false;
}

// False, and nothing changes, where they do not fit.
bool ConstrainedAnswer::push_bytes(std::string_view bytes) {
  const ThreadSet before = threads_;
  for (const char c : bytes) {
    runner_.step(threads_, static_cast<uint8_t>(c), next_);
    std::swap(threads_, next_);
    if (!threads_.empty()) continue;
    threads_ = before;
    return false;
  }
  constexpr size_t kMinFrames = 1024;
  if (runner_.mark() > kMinFrames + 2 * num_frames_kept_) {
    runner_.compact(threads_);
    num_frames_kept_ = runner_.mark();
  }
  return true;
}

}  // namespace longspan::text
