#include "text/bpe.h"

#include <algorithm>
#include <bit>

#include "core/error.h"

namespace longspan::text {

Bpe::Bpe(const Vocabulary& vocabulary, const std::vector<Merge>& merges, WholeWords whole_words) {
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const auto id = vocabulary.find({&c, 1});
    CHECK_MSG(id, "no token for byte 0x{:02x}", byte);
    id_of_byte_[static_cast<size_t>(byte)] = *id;
  }
  slots_.resize(std::bit_ceil(2 * merges.size() + 1));
  for (size_t rank = 0; rank < merges.size(); ++rank) insert(merges[rank], static_cast<int32_t>(rank));

  // Most pieces of a text are tokens: found in the vocabulary, they need no merging. That gives the same ids
  // only where merging ends at the token, so it is tried once, here.
  is_whole_.resize(static_cast<size_t>(vocabulary.size()));
  Scratch scratch;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view bytes = vocabulary.bytes(id);
    if (bytes.empty() || vocabulary.find(bytes) != id) continue;
    if (whole_words == WholeWords::kIfMerged) {
      merge_bytes(bytes, scratch);
      if (scratch.symbols[0].next >= 0 || scratch.symbols[0].id != id) continue;
    }
    is_whole_[static_cast<size_t>(id)] = true;
  }
}

size_t Bpe::first_slot(int32_t left, int32_t right) const {
  const uint64_t key = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  const uint64_t hash = key * 0x9E3779B97F4A7C15u;  // Fibonacci hashing; the high bits are the mixed ones
  return static_cast<size_t>(hash >> 32) & (slots_.size() - 1);
}

void Bpe::insert(const Merge& merge, int32_t rank) {
  size_t i = first_slot(merge.left, merge.right);
  while (slots_[i].left >= 0 && (slots_[i].left != merge.left || slots_[i].right != merge.right)) {
    i = (i + 1) & (slots_.size() - 1);
  }
  slots_[i] = {merge.left, merge.right, rank, merge.merged};
}

const Bpe::Slot* Bpe::find(int32_t left, int32_t right) const {
  for (size_t i = first_slot(left, right); slots_[i].left >= 0; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].left == left && slots_[i].right == right) return &slots_[i];
  }
  return nullptr;
}

// Leaves the result as the list of scratch.symbols, which begins at symbol 0.
void Bpe::merge_bytes(std::string_view piece, Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.order > b.order;
  };
  const auto candidate_at = [&](int32_t left) -> const Slot* {
    const Scratch::Symbol& symbol = symbols[static_cast<size_t>(left)];
    return symbol.next < 0 ? nullptr : find(symbol.id, symbols[static_cast<size_t>(symbol.next)].id);
  };
  const auto candidate = [](const Slot& slot, int32_t left) {
    return Scratch::Candidate{static_cast<uint64_t>(slot.rank) << 32 | static_cast<uint32_t>(left),
                              slot.merged};
  };

  const auto size = static_cast<int32_t>(piece.size());
  symbols.resize(piece.size());
  for (int32_t i = 0; i < size; ++i) {
    const auto byte = static_cast<uint8_t>(piece[static_cast<size_t>(i)]);
    symbols[static_cast<size_t>(i)] = {id_of_byte_[byte], i - 1, i + 1 < size ? i + 1 : -1};
  }
  heap.clear();
  for (int32_t i = 0; i < size; ++i) {
    if (const Slot* slot = candidate_at(i)) heap.push_back(candidate(*slot, i));
  }
  std::make_heap(heap.begin(), heap.end(), later);

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    const auto left = static_cast<int32_t>(best.order & 0xFFFFFFFFu);
    Scratch::Symbol& symbol = symbols[static_cast<size_t>(left)];
    if (symbol.id < 0) continue;
    const Slot* const now = candidate_at(left);
    if (!now || now->merged != best.merged) continue;  // a neighbour has changed

    Scratch::Symbol& swallowed = symbols[static_cast<size_t>(symbol.next)];
    symbol.id = best.merged;
    symbol.next = swallowed.next;
    swallowed.id = -1;
    if (symbol.next >= 0) symbols[static_cast<size_t>(symbol.next)].previous = left;

    for (const int32_t changed : {symbol.previous, left}) {
      const Slot* const slot = changed < 0 ? nullptr : candidate_at(changed);
      if (!slot) continue;
      heap.push_back(candidate(*slot, changed));
      std::push_heap(heap.begin(), heap.end(), later);
    }
  }
}

void Bpe::encode(const Vocabulary& vocabulary, std::string_view piece, Scratch& scratch,
                 std::vector<int32_t>& ids) const {
  if (piece.empty()) return;
  if (const auto id = vocabulary.find(piece); id && is_whole_[static_cast<size_t>(*id)]) {
    ids.push_back(*id);
    return;
  }
  CHECK(piece.size() < (size_t{1} << 31));
  merge_bytes(piece, scratch);
  for (int32_t i = 0; i >= 0; i = scratch.symbols[static_cast<size_t>(i)].next) {
    ids.push_back(scratch.symbols[static_cast<size_t>(i)].id);
  }
}

}  // namespace longspan::text
