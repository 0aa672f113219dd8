// BatchRows: which running sequence has which row, and the block tables that say so. A row of the batch is a
// row of every table; the rows of a step lie together, and who stays keeps its row, so that steady decode
// copies no table.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/block_table.h"
#include "cache/page_plan.h"
#include "schedule/sequence.h"

namespace longspan::schedule {

// What a sequence computes in a step.
struct Pick {
  Sequence* seq = nullptr;
  int32_t q_len = 0;  // tokens
};

class BatchRows {
 public:
  BatchRows(const cache::PagePlan& plan, int32_t max_num_seqs, int64_t max_model_len);

  void add(Sequence& seq);  // into the first free row, of which there must be one
  void append(const Sequence& seq, const cache::Page& page);
  void remove(Sequence& seq);
  // Brings the picks to rows first_row .. first_row + n - 1, moving only those that are elsewhere.
  void gather(std::span<const Pick> picks, int32_t first_row);

  cache::BlockTable& table(int32_t group) { return tables_[static_cast<size_t>(group)]; }
  const cache::BlockTable& table(int32_t group) const { return tables_[static_cast<size_t>(group)]; }

 private:
  void swap(int32_t a, int32_t b);

  // [num_groups]: attention [max_num_seqs, max pages], states [max_num_seqs, 1]
  std::vector<cache::BlockTable> tables_;
  std::vector<Sequence*> seqs_;    // [max_num_seqs], null where free
  std::vector<uint8_t> is_taken_;  // [max_num_seqs], scratch of gather
};

}  // namespace longspan::schedule
