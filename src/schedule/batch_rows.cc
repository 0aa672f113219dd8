#include "schedule/batch_rows.h"

#include <algorithm>
#include <utility>

namespace longspan::schedule {

BatchRows::BatchRows(const cache::PagePlan& plan, int32_t max_num_seqs, int64_t max_model_len)
    : seqs_(static_cast<size_t>(max_num_seqs), nullptr), is_taken_(static_cast<size_t>(max_num_seqs), 0) {
  const int32_t max_pages = static_cast<int32_t>(plan.pages_for(max_model_len));
  for (const cache::LayerGroup& group : plan.groups)
    tables_.emplace_back(max_num_seqs, group.kind == cache::LayerKind::kAttention ? max_pages : 1);
}

void BatchRows::add(Sequence& seq) {
  seq.row = static_cast<int32_t>(std::find(seqs_.begin(), seqs_.end(), nullptr) - seqs_.begin());
  seqs_[static_cast<size_t>(seq.row)] = &seq;
  for (const cache::Page& page : seq.pages) append(seq, page);
  for (size_t i = 0; i < seq.state.pages.size(); ++i) tables_[i + 1].append(seq.row, seq.state.pages[i].id());
}

void BatchRows::append(const Sequence& seq, const cache::Page& page) {
  tables_[0].append(seq.row, page.id());
}

void BatchRows::remove(Sequence& seq) {
  for (cache::BlockTable& table : tables_) table.clear_row(seq.row);
  seqs_[static_cast<size_t>(seq.row)] = nullptr;
  seq.row = -1;
}

void BatchRows::gather(std::span<const Pick> picks, int32_t first_row) {
  const int32_t end_row = first_row + static_cast<int32_t>(picks.size());
  const auto is_inside = [&](const Pick& pick) {
    return pick.seq->row >= first_row && pick.seq->row < end_row;
  };
  std::fill(is_taken_.begin() + first_row, is_taken_.begin() + end_row, uint8_t{0});
  for (const Pick& pick : picks)
    if (is_inside(pick)) is_taken_[static_cast<size_t>(pick.seq->row)] = 1;
  int32_t hole = first_row;
  for (const Pick& pick : picks) {
    if (is_inside(pick)) continue;
    while (is_taken_[static_cast<size_t>(hole)]) ++hole;
    swap(pick.seq->row, hole++);
  }
}

void BatchRows::swap(int32_t a, int32_t b) {
  std::swap(seqs_[static_cast<size_t>(a)], seqs_[static_cast<size_t>(b)]);
  for (const int32_t row : {a, b})
    if (Sequence* seq = seqs_[static_cast<size_t>(row)]) seq->row = row;
  for (cache::BlockTable& table : tables_) table.swap_rows(a, b);
}

}  // namespace longspan::schedule
