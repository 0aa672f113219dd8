// Sends each sequence to its kernel. What decides is the sequence's place (decode rows first), never its
// length: the last token of a prompt, alone in its chunk, keeps the prefill form and its bits. kUnified and
// kVendorPrefill are one kernel on a CPU.
#include "ops/cpu/attention.h"

#include <algorithm>

namespace longspan::ops::cpu {

void attention(const Context& context, const Attention& args) {
  CHECK_MSG(args.scale >= 0, "[attention] scale: got {}, need >= 0", args.scale);
  const Index end_seq = args.first_seq + args.num_seqs;
  const Index num_decode = std::clamp(args.seqs.num_decode_seqs - args.first_seq, Index{0}, args.num_seqs);
  const Index first_prefill = args.first_seq + num_decode;
  const auto run = [&]<class T>() {
    decode_attention<T>(context, args, args.first_seq, num_decode);
    prefill_attention<T>(context, args, first_prefill, end_seq - first_prefill);
  };
  if (args.q.dtype == DType::kF32) return run.operator()<float>();
  CHECK_MSG(args.q.dtype == DType::kBF16, "[attention] dtype on the CPU: got {}, need float32 or bfloat16",
            dtype_name(args.q.dtype));
  run.operator()<bf16>();
}

}  // namespace longspan::ops::cpu
