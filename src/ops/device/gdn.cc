#include "ops/device/kernels.h"

namespace longspan::ops::device {

// Decode rows come first and run the recurrence; prompt chunks the chunked form.
void gated_delta(const Context& context, const GatedDelta& args) {
  if (args.seqs.num_decode_seqs > 0) gdn_decode(context, args);
  if (args.seqs.num_seqs > args.seqs.num_decode_seqs && !gdn_mma(context, args)) gdn_prefill(context, args);
}

}  // namespace longspan::ops::device
