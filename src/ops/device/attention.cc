// Which sequences take which form: decode rows split their context, prompt chunks tile their queries. The
// path only chooses how pages are walked.
#include <algorithm>

#include "ops/device/kernels.h"
#include "ops/device/prefill_library.h"

namespace longspan::ops::device {

void attention(const Context& context, const Attention& args) {
  const Index end = args.first_seq + args.num_seqs;
  const Index border = std::clamp(args.seqs.num_decode_seqs, args.first_seq, end);
  Attention part = args;
  part.num_seqs = border - args.first_seq;
  if (part.num_seqs > 0) attention_decode(context, part);
  part.first_seq = border;
  part.num_seqs = end - border;
  if (part.num_seqs == 0) return;
  if (args.path == AttentionPath::kVendorPrefill) {
    if (context.prefill_library.attention(part)) return;
    unpack_kv(context, part);
    if (attention_wgmma(context, part)) return;
  }
  if (!attention_mma(context, part)) attention_prefill(context, part);
}

}  // namespace longspan::ops::device
