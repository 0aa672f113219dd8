// Bpe: byte-pair encoding of one piece of text. Starts from bytes and applies the merge of the lowest rank
// first, the leftmost of equals; O(n log n) in the length of the piece.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace longspan::text {

// left and right side by side become merged. The rank is the place in the list; of two equal pairs the later
// counts.
struct Merge {
  int32_t left;
  int32_t right;
  int32_t merged;
};

// Immutable after construction, so any number of threads may encode at once, each with its own Scratch.
class Bpe final {
 public:
  enum class WholeWords : uint8_t {
    kIfMerged,  // a piece that is a token is that token only when the merges lead there
    kAlways,    // `ignore_merges` of tokenizer.json
  };

  // The vocabulary must hold all 256 single bytes, and every merge id.
  Bpe(const Vocabulary& vocabulary, const std::vector<Merge>& merges, WholeWords whole_words);

  // Working memory of encode(), kept between calls.
  struct Scratch {
    // A symbol of a doubly linked list, by index; -1 ends the list.
    struct Symbol {
      int32_t id;  // -1: swallowed by the symbol to its left
      int32_t previous;
      int32_t next;
    };
    // A merge that may be applied at `left`, if nothing there has changed since.
    struct Candidate {
      uint64_t order;  // rank << 32 | left: lowest first
      int32_t merged;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // Appends the ids of a piece to `ids` (appends, because a text has many small pieces). The vocabulary is
  // the one given at construction. Fewer than 2^31 bytes.
  void encode(const Vocabulary& vocabulary, std::string_view piece, Scratch& scratch,
              std::vector<int32_t>& ids) const;

 private:
  struct Slot {
    int32_t left = -1;  // -1: free
    int32_t right = -1;
    int32_t rank = 0;
    int32_t merged = 0;
  };

  size_t first_slot(int32_t left, int32_t right) const;
  void insert(const Merge& merge, int32_t rank);
  const Slot* find(int32_t left, int32_t right) const;  // null: no such merge
  void merge_bytes(std::string_view piece, Scratch& scratch) const;

  std::array<int32_t, 256> id_of_byte_;
  std::vector<Slot> slots_;     // open addressing, linear probing, a power of two and at most half full
  std::vector<bool> is_whole_;  // [vocabulary size]: the bytes of the token encode to the token
};

}  // namespace longspan::text
