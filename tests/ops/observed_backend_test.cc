// A backend that is observed does all that it did before, and tells of each operation.
#include "ops/observed_backend.h"

#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <vector>

namespace longspan::ops {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(std::string(LONGSPAN_SOURCE_DIR) + "/src/" + path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The functions that `pattern` finds, the first group their name.
std::set<std::string> names_in(const std::string& text, const char* pattern) {
  std::set<std::string> names;
  const std::regex regex(pattern);
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) names.insert((*it)[1]);
  return names;
}

// What compiles without an override is what would be forgotten: the functions that have a default.
TEST(ObservedBackend, OverridesEveryFunctionOfABackend) {
  const std::string header = text_of("ops/ops.h");
  const std::string backend =
      header.substr(header.find("class Backend"), header.find("class Ops ") - header.find("class Backend"));
  constexpr const char* kVirtual = R"(virtual [^~;{(]*?(\w+)\()";
  std::set<std::string> wanted = names_in(backend, kVirtual);
  wanted.merge(names_in(text_of("core/memory.h"), kVirtual));
  ASSERT_GE(wanted.size(), 25u) << "the pattern finds too little";
  const std::set<std::string> got =
      names_in(text_of("ops/observed_backend.h"), R"((\w+)\([^;{]*?\)(?: const)? override)");
  for (const std::string& name : wanted) EXPECT_TRUE(got.contains(name)) << name;
}

// Remembers what it was asked for.
class Probe final : public Backend {
 public:
  std::string last;

  std::string name() const override { return "probe"; }
  std::unique_ptr<Weight> pack(std::span<const TensorView>, DType) override { return nullptr; }
  void embed(const Embed&) override { last = "embed"; }
  void gather_rows(const GatherRows&) override { last = "gather_rows"; }
  void rms_norm(const RmsNorm&) override { last = "rms_norm"; }
  void matmul(const Matmul&) override { last = "matmul"; }
  void swiglu(const SwiGlu&) override { last = "swiglu"; }
  void matmul_swiglu(const MatmulSwiGlu&) override { last = "matmul_swiglu"; }
  void rope_angles(const RopeAngles&) override { last = "rope_angles"; }
  void qk_rope_write(const QkRopeWrite&) override { last = "qk_rope_write"; }
  void attention(const Attention&) override { last = "attention"; }
  void causal_conv(const CausalConv&) override { last = "causal_conv"; }
  void gated_delta(const GatedDelta&) override { last = "gated_delta"; }
  void best_column(const BestColumn&) override { last = "best_column"; }
  void draw(const Draw&) override { last = "draw"; }
  void advance_inputs(const AdvanceInputs&) override { last = "advance_inputs"; }

  std::unique_ptr<Recording> record(const std::function<void()>& calls) override;
  int num_replays = 0;
  bool replays = true;
};

struct ProbeRecording final : Recording {
  explicit ProbeRecording(Probe& of) : probe(of) {}
  bool replay() override {
    probe.num_replays += probe.replays ? 1 : 0;
    return probe.replays;
  }
  Probe& probe;
};

std::unique_ptr<Recording> Probe::record(const std::function<void()>& calls) {
  calls();
  return std::make_unique<ProbeRecording>(*this);
}

class Listener final : public OpObserver {
 public:
  std::vector<OpWork> works;
  void on_op(const OpWork& work, int64_t begin_ns, int64_t end_ns) override {
    EXPECT_LE(begin_ns, end_ns);
    works.push_back(work);
  }
  std::vector<RecordedOp> replayed;
  int num_before = 0, num_replays = 0;
  void before_op() override { ++num_before; }
  void on_replay(std::span<const RecordedOp> ops, int64_t begin_ns, int64_t end_ns) override {
    EXPECT_LE(begin_ns, end_ns);
    ++num_replays;
    replayed.assign(ops.begin(), ops.end());
  }
};

struct FakeWeight final : Weight {
  FakeWeight(Index n, Index k) {
    out_features = n;
    in_features = k;
  }
  size_t size_bytes() const override { return static_cast<size_t>(out_features * in_features * 2); }
};

// Arguments of every operation for `rows` tokens of `num_seqs` sequences; nobody computes with them.
class Arguments {
 public:
  Arguments(Index rows, Index num_seqs, Index num_decode_seqs, Index kv_len)
      : rows_(rows), starts_(DType::kI32, {num_seqs + 1}), lens_(DType::kI32, {num_seqs}) {
    for (Index i = 0; i <= num_seqs; ++i)
      starts_.view().as<int32_t>()[i] = static_cast<int32_t>(i * rows / num_seqs);
    for (Index i = 0; i < num_seqs; ++i) lens_.view().as<int32_t>()[i] = static_cast<int32_t>(kv_len);
    seqs_ = {starts_.view(), lens_.view(), num_seqs, num_decode_seqs};
  }

  Matmul matmul() { return {.x = bf16({rows_, 64}), .weight = &weight_, .out = bf16({rows_, 128})}; }
  MatmulSwiGlu matmul_swiglu() {
    return {.x = bf16({rows_, 64}), .weight = &weight_, .out = bf16({rows_, 64})};
  }
  Attention attention(AttentionPath path) {
    return {.q = bf16({rows_, 8, 32}),
            .kv = {.page_tokens = 64, .num_kv_heads = 2, .head_dim = 32},
            .seqs = seqs_,
            .num_seqs = seqs_.num_seqs,
            .path = path,
            .out = bf16({rows_, 8, 32})};
  }
  CausalConv causal_conv() {
    return {.x = bf16({rows_, 96}), .state = state_, .seqs = seqs_, .out = bf16({rows_, 96})};
  }
  GatedDelta gated_delta() {
    return {.q = bf16({rows_, 2, 16}),
            .v = bf16({rows_, 4, 16}),
            .state = state_,
            .seqs = seqs_,
            .out = bf16({rows_, 4, 16})};
  }
  RmsNorm rms_norm() { return {.x = bf16({rows_, 64}), .out = bf16({rows_, 64})}; }
  Embed embed() { return {.table = &weight_, .out = bf16({rows_, 64})}; }
  GatherRows gather_rows() { return {.out = bf16({rows_, 64})}; }
  SwiGlu swiglu() { return {.out = bf16({rows_, 64})}; }
  RopeAngles rope_angles() { return {.cos_sin = TensorView(memory_.data(), DType::kF32, {rows_, 16})}; }
  QkRopeWrite qk_rope_write() {
    return {.q = bf16({rows_, 8, 32}), .k = bf16({rows_, 2, 32}), .v = bf16({rows_, 2, 32})};
  }
  BestColumn best_column() { return {.x = bf16({rows_, 128})}; }
  Draw draw() { return {.x = bf16({rows_, 128})}; }
  AdvanceInputs advance_inputs() { return {.tokens = TensorView(memory_.data(), DType::kI32, {rows_})}; }

 private:
  TensorView bf16(Shape shape) { return TensorView(memory_.data(), DType::kBF16, shape); }

  Index rows_;
  Buffer memory_{size_t{1} << 20};
  Buffer starts_, lens_;
  Sequences seqs_;
  FakeWeight weight_{128, 64};
  StateCache state_{.num_v_heads = 4, .k_dim = 16, .v_dim = 16, .conv_kernel = 4, .conv_channels = 96};
};

TEST(ObservedBackend, PassesEachOperationOnAndTellsOfIt) {
  auto owned = std::make_unique<Probe>();
  const Probe& probe = *owned;
  ObservedBackend backend(std::move(owned));
  Listener listener;
  backend.observe(&listener);
  Arguments args(4, 1, 0, 4);
  const auto expect = [&](OpKind kind) {
    EXPECT_EQ(probe.last, to_string(kind));
    ASSERT_FALSE(listener.works.empty());
    EXPECT_EQ(listener.works.back().kind, kind) << to_string(kind);
  };
  backend.embed(args.embed());
  expect(OpKind::kEmbed);
  backend.gather_rows(args.gather_rows());
  expect(OpKind::kGatherRows);
  backend.rms_norm(args.rms_norm());
  expect(OpKind::kRmsNorm);
  backend.matmul(args.matmul());
  expect(OpKind::kMatmul);
  backend.swiglu(args.swiglu());
  expect(OpKind::kSwiGlu);
  backend.matmul_swiglu(args.matmul_swiglu());
  expect(OpKind::kMatmulSwiGlu);
  backend.rope_angles(args.rope_angles());
  expect(OpKind::kRopeAngles);
  backend.qk_rope_write(args.qk_rope_write());
  expect(OpKind::kQkRopeWrite);
  backend.attention(args.attention(AttentionPath::kUnified));
  expect(OpKind::kAttention);
  backend.causal_conv(args.causal_conv());
  expect(OpKind::kCausalConv);
  backend.gated_delta(args.gated_delta());
  expect(OpKind::kGatedDelta);
  backend.best_column(args.best_column());
  expect(OpKind::kBestColumn);
  backend.draw(args.draw());
  expect(OpKind::kDraw);
  backend.advance_inputs(args.advance_inputs());
  expect(OpKind::kAdvanceInputs);
  EXPECT_EQ(listener.works.size(), kNumOpKinds);
}

TEST(OpWork, ProductsAreSkinnyUpToSixteenRows) {
  Arguments one(1, 1, 1, 9), sixteen(16, 1, 0, 16), seventeen(17, 1, 0, 17);
  EXPECT_EQ(work_of(one.matmul(), Tables::kHost).op_class, OpClass::kSkinnyProduct);
  EXPECT_EQ(work_of(sixteen.matmul(), Tables::kHost).op_class, OpClass::kSkinnyProduct);
  EXPECT_EQ(work_of(seventeen.matmul(), Tables::kHost).op_class, OpClass::kMatrixProduct);
  EXPECT_EQ(work_of(one.matmul_swiglu(), Tables::kHost).op_class, OpClass::kSkinnyGateUp);
  EXPECT_EQ(work_of(seventeen.matmul_swiglu(), Tables::kHost).op_class, OpClass::kMatrixProduct);
  const OpWork work = work_of(seventeen.matmul(), Tables::kHost);
  EXPECT_EQ(work.flops, 2.0 * 17 * 128 * 64);
  EXPECT_EQ(work.bytes, 2.0 * (128 * 64 + 17 * 64 + 17 * 128));
  EXPECT_EQ(name_of(work), "matmul 128x64");
}

TEST(OpWork, AttentionCountsWhatIsVisible) {
  Arguments prompt(4, 1, 0, 10);
  const OpWork prefill = work_of(prompt.attention(AttentionPath::kVendorPrefill), Tables::kHost);
  EXPECT_EQ(prefill.op_class, OpClass::kPrefillAttention);
  EXPECT_EQ(prefill.flops, 4.0 * 32 * 8 * (7 + 8 + 9 + 10));  // the queries at 6 .. 9 see 7 .. 10 keys
  EXPECT_EQ(prefill.k, 10);
  EXPECT_EQ(name_of(prefill), "attention vendor_prefill");
  Arguments two(2, 2, 2, 100);
  const OpWork decode = work_of(two.attention(AttentionPath::kPageContiguousDecode), Tables::kHost);
  EXPECT_EQ(decode.op_class, OpClass::kDecodeAttention);
  EXPECT_EQ(decode.bytes, 2.0 * (2 * 2 * 256 + 2 * 200 * 2 * 32));  // q and out; K and V of 2 x 100 tokens
  // On a card the lengths lie where the host cannot read them.
  const OpWork blind = work_of(two.attention(AttentionPath::kUnified), Tables::kDevice);
  EXPECT_EQ(blind.flops, 0);
  EXPECT_EQ(blind.op_class, OpClass::kDecodeAttention);
}

TEST(OpWork, EveryOtherOperationHasItsClass) {
  Arguments args(8, 1, 0, 8), decode(1, 1, 1, 8);
  EXPECT_EQ(work_of(args.gated_delta(), Tables::kHost).op_class, OpClass::kGatedDelta);
  EXPECT_EQ(work_of(args.gated_delta(), Tables::kHost).flops, 7.0 * 8 * 4 * 16 * 16);
  EXPECT_EQ(name_of(work_of(args.gated_delta(), Tables::kHost)), "gated_delta prefill");
  EXPECT_EQ(name_of(work_of(decode.gated_delta(), Tables::kHost)), "gated_delta decode");
  EXPECT_EQ(work_of(args.causal_conv(), Tables::kHost).op_class, OpClass::kConv);
  EXPECT_EQ(work_of(args.rms_norm(), Tables::kHost).op_class, OpClass::kNorm);
  EXPECT_EQ(work_of(args.rope_angles(), Tables::kHost).op_class, OpClass::kRopeAndCache);
  EXPECT_EQ(work_of(args.qk_rope_write(), Tables::kHost).op_class, OpClass::kRopeAndCache);
  EXPECT_EQ(work_of(args.embed(), Tables::kHost).op_class, OpClass::kRows);
  EXPECT_EQ(work_of(args.gather_rows(), Tables::kHost).op_class, OpClass::kRows);
  EXPECT_EQ(work_of(args.swiglu(), Tables::kHost).op_class, OpClass::kRows);
  EXPECT_EQ(work_of(args.best_column(), Tables::kHost).op_class, OpClass::kSampling);
  EXPECT_EQ(work_of(args.draw(), Tables::kHost).op_class, OpClass::kSampling);
  EXPECT_EQ(work_of(args.advance_inputs(), Tables::kHost).op_class, OpClass::kRows);
}

// A recording is made when nobody looks on; whoever does later hears of what is in it.
TEST(ObservedBackend, TellsOfWhatIsReplayed) {
  auto owned = std::make_unique<Probe>();
  Probe& probe = *owned;
  ObservedBackend backend(std::move(owned));
  Listener listener;
  Arguments args(1, 1, 1, 5);
  const std::unique_ptr<Recording> recording = backend.record([&] {
    backend.begin_layer(3);
    backend.swiglu(args.swiglu());
    backend.matmul(args.matmul());
  });
  EXPECT_TRUE(recording->replay());
  EXPECT_EQ(listener.num_replays, 0);
  backend.observe(&listener);
  EXPECT_TRUE(recording->replay());
  EXPECT_EQ(probe.num_replays, 2);
  EXPECT_TRUE(listener.works.empty());
  EXPECT_EQ(listener.num_before, 1);
  ASSERT_EQ(listener.replayed.size(), 2u);
  EXPECT_EQ(listener.replayed[0].work.kind, OpKind::kSwiGlu);
  EXPECT_EQ(listener.replayed[1].work.kind, OpKind::kMatmul);
  EXPECT_EQ(listener.replayed[1].work.layer, 3);
  // While it is recorded an operation does not run, and nobody is told.
  const std::unique_ptr<Recording> watched = backend.record([&] { backend.swiglu(args.swiglu()); });
  EXPECT_TRUE(listener.works.empty());
  probe.replays = false;  // it is no longer good
  EXPECT_FALSE(watched->replay());
  EXPECT_TRUE(listener.replayed.empty());
  backend.swiglu(args.swiglu());
  EXPECT_EQ(listener.works.size(), 1u);
}

TEST(ObservedBackend, TellsNobodyUnlessObserved) {
  auto owned = std::make_unique<Probe>();
  const Probe& probe = *owned;
  ObservedBackend backend(std::move(owned));
  Listener listener;
  Arguments args(2, 1, 0, 2);
  backend.swiglu(args.swiglu());
  EXPECT_EQ(probe.last, "swiglu");
  EXPECT_TRUE(listener.works.empty());
  backend.observe(&listener);
  backend.swiglu(args.swiglu());
  EXPECT_EQ(listener.works.size(), 1u);
  backend.observe(nullptr);
  backend.swiglu(args.swiglu());
  EXPECT_EQ(listener.works.size(), 1u);
}

}  // namespace
}  // namespace longspan::ops
