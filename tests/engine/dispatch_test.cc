// The gate of vendor_prefill where a library of other bits stands behind it: no shape may decide.
#include "engine/dispatch.h"

#include <gtest/gtest.h>

namespace longspan::engine {
namespace {

constexpr AttentionTraits kVendorModel{
    .head_dim = 256, .num_q_heads = 24, .num_kv_heads = 4, .page_tokens = 832};
constexpr AttentionShape kOddShapes[] = {{.num_seqs = 3, .q_len = 64, .max_q_len = 64, .kv_len = 64},
                                         {.num_seqs = 1, .q_len = 1, .max_q_len = 1, .kv_len = 65},
                                         {.num_seqs = 1, .q_len = 8192, .max_q_len = 8192, .kv_len = 8192},
                                         {.num_seqs = 2, .q_len = 5, .max_q_len = 70, .kv_len = 70}};

TEST(Dispatch, ALibraryTakesPromptsOfEveryShape) {
  for (const bool library : {false, true}) {
    AttentionTraits traits = kVendorModel;
    traits.prefill_library = library;
    Dispatcher dispatcher({}, traits);
    for (const AttentionShape& shape : kOddShapes)
      EXPECT_EQ(dispatcher.prefill_path(shape),
                library ? ops::AttentionPath::kVendorPrefill : ops::AttentionPath::kUnified)
          << shape.num_seqs << " sequences of " << shape.max_q_len;
  }
}

TEST(Dispatch, ALibraryDoesNotOpenWhatTheModelCloses) {
  AttentionTraits traits = kVendorModel;
  traits.prefill_library = true;
  traits.page_tokens = 784;
  EXPECT_EQ(Dispatcher({}, traits).prefill_path(kOddShapes[0]), ops::AttentionPath::kUnified);
}

}  // namespace
}  // namespace longspan::engine
