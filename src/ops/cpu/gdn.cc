// Gated delta rule: spreads decode rows and prompts over the pool. A task is one head of one sequence, so no
// result depends on the number of threads.
#include "ops/cpu/gdn.h"

namespace longspan::ops::cpu {

void gated_delta(const Context& context, const GatedDelta& args) {
  const Index num_v_heads = args.state.num_v_heads;
  const Index num_k_heads = args.q.dim(1);
  const Index num_decode = args.seqs.num_decode_seqs;
  const Index num_prompts = args.seqs.num_seqs - num_decode;
  context.scratch.reserve(std::max(gdn_decode_scratch_bytes(args), gdn_prefill_scratch_bytes(args)));
  context.pool.parallel_for(num_decode * num_v_heads, [&](int64_t task, int thread) {
    gdn_decode(args, task / num_v_heads, task % num_v_heads, context.scratch.of_thread(thread));
  });
  // The value heads of a key head share its products, unless that leaves threads without work.
  const bool shared = num_prompts * num_k_heads >= 4 * context.pool.num_threads();
  const Index heads_per_task = shared ? num_v_heads / num_k_heads : 1;
  const Index tasks_per_prompt = num_v_heads / heads_per_task;
  context.pool.parallel_for(num_prompts * tasks_per_prompt, [&](int64_t task, int thread) {
    gdn_prefill(args, num_decode + task / tasks_per_prompt, task % tasks_per_prompt * heads_per_task,
                heads_per_task, context.scratch.of_thread(thread));
  });
}

}  // namespace longspan::ops::cpu
