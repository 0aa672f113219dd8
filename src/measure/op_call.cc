#include "measure/op_call.h"

#include <array>

namespace longspan::measure {
namespace {

constexpr std::array<std::string_view, std::variant_size_v<OpCall>> kOpNames = {
    "embed",         "gather_rows", "rms_norm",      "matmul",        "swiglu",
    "matmul_swiglu", "rope_angles", "qk_rope_write", "attention",     "causal_conv",
    "gated_delta",   "best_column", "draw",          "advance_inputs"};

template <class... Fns>
struct Overloaded : Fns... {
  using Fns::operator()...;
};
template <class... Fns>
Overloaded(Fns...) -> Overloaded<Fns...>;

using Visit = std::function<void(const char* name, TensorView& view, ViewRole role)>;
using enum ViewRole;

void visit_sequences(ops::Sequences& seqs, const Visit& visit) {
  visit("query_start_loc", seqs.query_start_loc, kIn);
  visit("seq_lens", seqs.seq_lens, kIn);
}

void visit_cache(ops::KvCache& kv, const Visit& visit) {
  if (!kv.scales.empty()) visit("scales", kv.scales, kIn);
  if (!kv.saturated.empty()) visit("saturated", kv.saturated, kScratch);
}

void visit_views(ops::QkRopeWrite& op, const Visit& visit) {
  visit("q", op.q, kIn);
  visit("k", op.k, kIn);
  visit("v", op.v, kIn);
  visit("q_norm", op.q_norm, kIn);
  visit("k_norm", op.k_norm, kIn);
  visit("cos_sin", op.cos_sin, kIn);
  visit("slots", op.slots, kIn);
  visit_cache(op.kv, visit);
  visit("q_out", op.q_out, kOut);
}

void visit_views(ops::GatedDelta& op, const Visit& visit) {
  visit("q", op.q, kIn);
  visit("k", op.k, kIn);
  visit("v", op.v, kIn);
  visit("z", op.z, kIn);
  visit("a", op.a, kIn);
  visit("b", op.b, kIn);
  visit("a_log", op.a_log, kIn);
  visit("dt_bias", op.dt_bias, kIn);
  visit("norm", op.norm, kIn);
  visit("state_pages", op.state_pages, kIn);
  visit_sequences(op.seqs, visit);
  visit("out", op.out, kOut);
}

void visit_views(ops::AdvanceInputs& op, const Visit& visit) {
  visit("tokens", op.tokens, kIn);
  visit("block_table", op.block_table, kIn);
  visit("token_ids", op.token_ids, kOut);
  visit("positions", op.positions, kOut);
  visit("query_start_loc", op.query_start_loc, kOut);
  visit("seq_lens", op.seq_lens, kInOut);
  visit("logit_rows", op.logit_rows, kOut);
  visit("slots", op.slots, kOut);
}

}  // namespace

std::string_view op_name(const OpCall& call) { return kOpNames[call.index()]; }

void run_op(ops::Backend& backend, const OpCall& call) {
  std::visit(Overloaded{[&](const ops::Embed& op) { backend.embed(op); },
                        [&](const ops::GatherRows& op) { backend.gather_rows(op); },
                        [&](const ops::RmsNorm& op) { backend.rms_norm(op); },
                        [&](const ops::Matmul& op) { backend.matmul(op); },
                        [&](const ops::SwiGlu& op) { backend.swiglu(op); },
                        [&](const ops::MatmulSwiGlu& op) { backend.matmul_swiglu(op); },
                        [&](const ops::RopeAngles& op) { backend.rope_angles(op); },
                        [&](const ops::QkRopeWrite& op) { backend.qk_rope_write(op); },
                        [&](const ops::Attention& op) { backend.attention(op); },
                        [&](const ops::CausalConv& op) { backend.causal_conv(op); },
                        [&](const ops::GatedDelta& op) { backend.gated_delta(op); },
                        [&](const ops::BestColumn& op) { backend.best_column(op); },
                        [&](const ops::Draw& op) { backend.draw(op); },
                        [&](const ops::AdvanceInputs& op) { backend.advance_inputs(op); }},
             call);
}

void for_each_view(OpCall& call, const Visit& given) {
  const Visit visit = [&](const char* name, TensorView& view, ViewRole role) {
    if (!view.empty()) given(name, view, role);
  };
  std::visit(Overloaded{[&](ops::Embed& op) {
                          visit("ids", op.ids, kIn);
                          visit("out", op.out, kOut);
                        },
                        [&](ops::GatherRows& op) {
                          visit("x", op.x, kIn);
                          visit("rows", op.rows, kIn);
                          visit("out", op.out, kOut);
                        },
                        [&](ops::RmsNorm& op) {
                          visit("x", op.x, op.delta.empty() ? kIn : kInOut);
                          visit("delta", op.delta, kIn);
                          visit("weight", op.weight, kIn);
                          visit("out", op.out, kOut);
                        },
                        [&](ops::Matmul& op) {
                          visit("x", op.x, kIn);
                          visit("bias", op.bias, kIn);
                          visit("out", op.out, kOut);
                        },
                        [&](ops::SwiGlu& op) {
                          visit("gate_up", op.gate_up, kIn);
                          visit("out", op.out, kOut);
                        },
                        [&](ops::MatmulSwiGlu& op) {
                          visit("x", op.x, kIn);
                          visit("gate_up", op.gate_up, kScratch);
                          visit("out", op.out, kOut);
                        },
                        [&](ops::RopeAngles& op) {
                          visit("positions", op.positions, kIn);
                          visit("inv_freq", op.inv_freq, kIn);
                          visit("cos_sin", op.cos_sin, kOut);
                        },
                        [&](ops::QkRopeWrite& op) { visit_views(op, visit); },
                        [&](ops::Attention& op) {
                          visit("q", op.q, kIn);
                          visit("gate", op.gate, kIn);
                          visit("block_table", op.block_table, kIn);
                          visit_cache(op.kv, visit);
                          visit_sequences(op.seqs, visit);
                          visit("out", op.out, kOut);
                        },
                        [&](ops::CausalConv& op) {
                          visit("x", op.x, kIn);
                          visit("weight", op.weight, kIn);
                          visit("state_pages", op.state_pages, kIn);
                          visit_sequences(op.seqs, visit);
                          visit("out", op.out, kOut);
                        },
                        [&](ops::GatedDelta& op) { visit_views(op, visit); },
                        [&](ops::BestColumn& op) {
                          visit("x", op.x, kIn);
                          visit("out", op.out, kOut);
                        },
                        [&](ops::Draw& op) {
                          visit("x", op.x, kIn);
                          visit("rows", op.rows, kInOut);
                          visit("out", op.out, kOut);
                        },
                        [&](ops::AdvanceInputs& op) { visit_views(op, visit); }},
             call);
}

const ops::Weight** weight_of(OpCall& call) {
  if (auto* op = std::get_if<ops::Embed>(&call)) return &op->table;
  if (auto* op = std::get_if<ops::Matmul>(&call)) return &op->weight;
  if (auto* op = std::get_if<ops::MatmulSwiGlu>(&call)) return &op->weight;
  return nullptr;
}

ops::KvCache* kv_cache_of(OpCall& call) {
  if (auto* op = std::get_if<ops::QkRopeWrite>(&call)) return &op->kv;
  if (auto* op = std::get_if<ops::Attention>(&call)) return &op->kv;
  return nullptr;
}

ops::StateCache* state_cache_of(OpCall& call) {
  if (auto* op = std::get_if<ops::CausalConv>(&call)) return &op->state;
  if (auto* op = std::get_if<ops::GatedDelta>(&call)) return &op->state;
  return nullptr;
}

bool writes_cache(const OpCall& call) {
  return std::holds_alternative<ops::QkRopeWrite>(call) || std::holds_alternative<ops::CausalConv>(call) ||
         std::holds_alternative<ops::GatedDelta>(call);
}

}  // namespace longspan::measure
