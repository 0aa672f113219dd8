// The way from cell to cell by Hopper's own means (hopper.h), with norm and gate behind it.
#include "ops/device/activation.h"
#include "ops/device/gdn_mma.h"
#include "ops/device/hopper.h"

namespace longspan::ops::device::gdn {
namespace {

// Pair of blocks (halves of v_dim; value head, sequence): what ScanKernel does, its fragments and products,
// by groups of four waves: one carries S, two make O and the output, of every second cell each. A fourth
// brings their tiles, two cells of them, what both blocks need once for both. The blocks tell each other the
// sums of squares of their halves of O.
struct WgmmaScanKernel {
  static constexpr bool kWholeUnit = true;
  static constexpr bool kPairs = true;
  static constexpr bool kOverlaps = true;
  static constexpr int kOutputGroups = 2;
  static constexpr int kThreads = (1 + kOutputGroups + 1) * kGroupThreads;
  static constexpr int kColumns = kPanelCols;
  static constexpr int kWaves = kGroupThreads / kMmaWave;
  static constexpr int kStages = kOutputGroups;  // each of which has one
  static constexpr int kPanelBytes = kCell * kPanelRowBytes;
  static constexpr int kTriangleBytes = kTriangleWords * sizeof(Words4);
  static constexpr int kScaleBytes = Workspace::kScales * sizeof(float);
  static constexpr int kStageBytes = 3 * kPanelBytes + kTriangleBytes + kScaleBytes;
  static constexpr int kStagePitch = (kStageBytes + kPanelAlignment - 1) / kPanelAlignment * kPanelAlignment;
  static_assert(kDim == 2 * kPanelCols && kCell == 64);
  static constexpr int kStateWords = kWaves * (kDim / 16) * 2 * kMmaWave;
  static constexpr int kValueWords = kWaves * (kCell / 8) * kMmaWave;
  static constexpr int kSums = 2 * kWaves * kCell;  // of both blocks' waves, one cell
  static constexpr int kNumBarriers = 2 * 2 * kStages + 8;
  static constexpr size_t kSharedBytes = kPanelAlignment + 2 * kStages * kStagePitch +
                                         (kStateWords + kValueWords) * sizeof(Words4) +
                                         2 * kSums * sizeof(float) + kNumBarriers * sizeof(uint64_t);
  CUtensorMap k_map, q_map, v_map, z_map;  // see describe_heads
  GdnInputs<T> in;
  GatedNorm<T> norm;
  Batch batch;

  DEVICE_FN void operator()() const {
#if defined(LONGSPAN_HOPPER)
    release_next();
    const int seq_idx = batch.cells.first_seq + block_idx().z;
    const CellRow row = batch.cells.row(seq_idx);
    const auto [begin, end] = batch.of(row);
    if (begin >= end) {
      await_previous();
      return;
    }
    const Task task{row, begin, end - begin, block_idx().y};
    char* const base = align_panels(shared_memory());
    const Shared<Words4> parts{reinterpret_cast<Words4*>(base + 2 * kStages * kStagePitch)};
    char* const values = reinterpret_cast<char*>((parts + kStateWords).data);
    float* const sums = reinterpret_cast<float*>(values + kValueWords * sizeof(Words4));
    uint64_t* const barriers = reinterpret_cast<uint64_t*>(sums + 2 * kSums);
    uint64_t* const shared_barriers = barriers + 4 * kStages;
    const auto stages_of = [&](int group) {
      return Stages{base + group * kStages * kStagePitch, barriers + 2 * group * kStages,
                    barriers + (2 * group + 1) * kStages};
    };
    const Shares shares{
        parts + wave() * (kDim / 16) * 2 * kMmaWave,
        Shared<Vec<float, 4>>{reinterpret_cast<Vec<float, 4>*>(values)} + wave() * (kCell / 8) * kMmaWave,
        sums,
        shared_barriers,
        shared_barriers + 2,
        shared_barriers + 4,
        shared_barriers + 6,
        shared_barriers + 7};
    if (thread_idx() == 0) {
      stages_of(0).init();
      stages_of(1).init();
      shares.init();
      publish_barriers();
    }
    pair_sync();
    await_previous();
    // By a shuffle the compiler sees that all lanes of a wave agree.
    const int group = shuffle(thread_idx() / kGroupThreads, 0, kMmaWave);
    if (group == 0) {
      take_registers<168>();
      carry(task, stages_of(0), shares, in.state.s(in.pages.get(seq_idx), task.head));
    } else if (group <= kOutputGroups) {
      take_registers<152>();
      make_outputs(task, stages_of(1), shares, group - 1);
    } else {
      give_registers<40>();
      const int which = shuffle(wave(), 0, kMmaWave);
      if (which < 2 && thread_idx() % kMmaWave == 0) copy_cells(task, stages_of(which), which);
    }
    wave_sync();
    pair_sync();  // a block's memory outlives what the other one sends there
#endif
  }

#if defined(LONGSPAN_HOPPER)
  // A group's part of a cell in shared memory.
  struct Stage {
    char* base;
    DEVICE_FN char* keys() const { return base; }                        // K or Q [kCell, kDim], two panels
    DEVICE_FN char* values() const { return base + 2 * kPanelBytes; }    // V or z, this block's columns
    DEVICE_FN char* triangle() const { return base + 3 * kPanelBytes; }  // T or P
    DEVICE_FN Shared<float> scales() const { return {reinterpret_cast<float*>(triangle() + kTriangleBytes)}; }
  };
  // A group's stages; cell 0 is the block's first.
  struct Stages {
    char* base;
    uint64_t* there;  // [kStages]
    uint64_t* read;   // [kStages] by the same group of both blocks
    DEVICE_FN Stage of(int i) const { return {base + i % kStages * kStagePitch}; }
    DEVICE_FN void await(int i) const { wait_barrier(there + i % kStages, i / kStages % 2); }
    DEVICE_FN void await_room(int i) const {
      if (i >= kStages) wait_barrier(read + i % kStages, (i / kStages - 1) % 2);
    }
    DEVICE_FN void release(int i) const {
      wave_sync();
      const int lane = thread_idx() % kMmaWave;
      if (lane < 2) arrive_pair(pair_address(read + i % kStages, lane));
    }
    DEVICE_FN void init() const {
      for (int i = 0; i < kStages; ++i) {
        init_barrier(there + i, 1);
        init_barrier(read + i, 2 * kWaves);
      }
    }
  };
  // What the groups leave each other. Those of two take turns from cell to cell: who waits for one of them
  // has seen the phase before.
  struct Shares {
    Shared<Words4> s_parts;        // S, of this wave
    Shared<Vec<float, 4>> values;  // V', of this wave
    float* sums;                   // [2, kSums]
    uint64_t *state, *value;       // [2] there
    uint64_t* summed;              // [2] by both blocks
    uint64_t *state_read, *value_read;
    DEVICE_FN void init() const {
      for (int i = 0; i < 2; ++i) {
        init_barrier(state + i, kWaves);
        init_barrier(value + i, kWaves);
        init_barrier(summed + i, 1);
      }
      init_barrier(state_read, kWaves);
      init_barrier(value_read, kWaves);
    }
  };
  // The block's work.
  struct Task {
    CellRow row;
    int first, count;  // cells of the row
    int head;
    DEVICE_FN Cell cell(int i) const { return row.cell(first + i); }
  };
  static DEVICE_FN void await_turn(uint64_t* barriers, int i) { wait_barrier(barriers + i % 2, i / 2 % 2); }
  // Of the cell before.
  static DEVICE_FN void await_last(uint64_t* barrier, int i) {
    if (i > 0) wait_barrier(barrier, (i - 1) % 2);
  }
  using State = FragmentC[kDim / 8];
  using Tokens = FragmentC[kCell / 8];

  static DEVICE_FN int thread() { return thread_idx() % kGroupThreads; }
  static DEVICE_FN int wave() { return thread() / kMmaWave; }
  // The lane's columns are column() and column() + 8 of the block's, its tokens or rows of S pair() and the
  // next of each eight.
  static DEVICE_FN int column() { return wave() * 16 + thread_idx() % kMmaWave / 4; }
  static DEVICE_FN int pair() { return thread_idx() % 4 * 2; }

  // By one lane, for all that the wave wrote or read.
  static DEVICE_FN void arrive_wave(uint64_t* barrier) {
    wave_sync();
    if (thread_idx() % kMmaWave == 0) arrive(barrier);
  }

  // One thread, for group 0 or 1: what both blocks read alike comes from the block of the group's number.
  DEVICE_FN void copy_cells(const Task& task, const Stages& stages, int group) const {
    const CUtensorMap& keys = group == 0 ? k_map : q_map;
    const CUtensorMap& values = group == 0 ? v_map : z_map;
    const int key_head = task.head / in.heads_per_key;
    const int batch_cell = task.row.first + task.first - batch.first;
    for (int i = 0; i < task.count; ++i) {
      const Stage to = stages.of(i);
      const Workspace from = batch.workspace.of(batch_cell + i, task.head);
      const int row = task.cell(i).first_row;
      uint64_t* const there = stages.there + i % kStages;
      stages.await_room(i);
      arrive_with_bytes(there, kStageBytes);
      copy_box(to.values(), values, {{0, row, block_idx().x, task.head, 0}}, there);
      copy_piece(to.scales().data, from.scales.data, kScaleBytes, there);
      if (block_idx().x == group) {
        copy_box_pair(to.keys(), keys, {{0, row, 0, key_head, 0}}, there);
        copy_piece_pair(to.triangle(), (group == 0 ? from.t : from.p).data, kTriangleBytes, there);
      }
      if (i + 1 == task.count) continue;
      const Workspace next = batch.workspace.of(batch_cell + i + 1, task.head);
      const int next_row = task.cell(i + 1).first_row;
      prefetch_box(values, {{0, next_row, block_idx().x, task.head, 0}});
      if (block_idx().x != group) continue;
      prefetch_box(keys, {{0, next_row, 0, key_head, 0}});
      prefetch_piece((group == 0 ? next.t : next.p).data, kTriangleBytes);
    }
  }

  DEVICE_FN void carry(const Task& task, const Stages& stages, const Shares& shares,
                       Global<float> own) const {
    State s;
    load_state(own, task.cell(0).position == 0, s);
    for (int i = 0; i < task.count; ++i) {
      const Stage at = stages.of(i);
      const Cell cell = task.cell(i);
      Tokens rest;
      Halves v;
      stages.await(i);
      if (cell.num_rows < kCell) clear_keys(at, cell.num_rows);
      await_last(shares.state_read, i);
      start_rest(at, shares.s_parts, s, rest);
      arrive_wave(shares.state + i % 2);
      wait_products<0>();
      hold(rest);
      finish_rest(at, cell.num_rows, rest);
#pragma unroll
      for (int d = 0; d < kTiles; ++d) {
        const SplitA a = split(rest[2 * d], rest[2 * d + 1]);
        begin_products();
        multiply_column(at.triangle(), d, a, v);
        commit_products();
        wait_products<1>();
      }
      const float decay = at.scales().get(Workspace::kOfState * kCell);
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[n].v[e] *= decay;
      await_last(shares.value_read, i);
      wait_products<0>();
      hold(v.first);
      hold(v.second);
#pragma unroll
      for (int n = 0; n < kCell / 8; ++n)
        shares.values.put(n * kMmaWave + thread_idx() % kMmaWave,
                          {{v[n].v[0], v[n].v[1], v[n].v[2], v[n].v[3]}});
      arrive_wave(shares.value + i % 2);
      scale(at, Workspace::kOfValues, v);
      const PanelOperand keys = panel_depth(at.keys(), kPanelBytes);
      hold(s);
#pragma unroll
      for (int d = 0; d < kTiles; ++d) {
        const SplitA a = split(v[2 * d], v[2 * d + 1]);
        begin_products();
        add_product<T>(s, a.high, keys.at(d * 16 * kPanelRowBytes));
        add_product<T>(s, a.low, keys.at(d * 16 * kPanelRowBytes));
        commit_products();
        wait_products<1>();
      }
      wait_products<0>();
      hold(s);
      stages.release(i);
      save(cell, task.head, s);
    }
    store_state(own, s);
  }

  DEVICE_FN void make_outputs(const Task& task, const Stages& stages, const Shares& shares, int first) const {
    const float weights[2] = {norm.norm.get(block_idx().x * kColumns + column()),
                              norm.norm.get(block_idx().x * kColumns + column() + 8)};
    for (int i = first; i < task.count; i += kOutputGroups) {
      const Stage at = stages.of(i);
      Tokens o;
      Halves own;  // of the cell's own values
      stages.await(i);
      await_turn(shares.state, i);
      const PanelOperand queries = panel_rows(at.keys());
#pragma unroll
      for (int d = 0; d < kDim / 16; ++d) {
        const SplitA a = get_parts(shares.s_parts, d);
        begin_products();
        add_product<T>(o, a.high, queries.at(panel_step(d)), d > 0);
        add_product<T>(o, a.low, queries.at(panel_step(d)), true);
        commit_products();
        wait_products<1>();
      }
      arrive_wave(shares.state_read);
      wait_products<0>();
      hold(o);
      scale(at, Workspace::kOfQueries, o);
      await_turn(shares.value, i);
#pragma unroll
      for (int d = 0; d < kTiles; ++d) {
        FragmentC v[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Vec<float, 4> part = shares.values.get((2 * d + half) * kMmaWave + thread_idx() % kMmaWave);
          v[half] = {{part.v[0], part.v[1], part.v[2], part.v[3]}};
        }
        const SplitA a = split(v[0], v[1]);
        begin_products();
        multiply_column(at.triangle(), d, a, own);
        commit_products();
        wait_products<1>();
      }
      arrive_wave(shares.value_read);
      wait_products<0>();
      hold(own.first);
      hold(own.second);
#pragma unroll
      for (int n = 0; n < kCell / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[n].v[e] += own[n].v[e];
      norm_and_gate(shares, i, at, weights, o);
      write(task.cell(i), task.head, stages, i);
    }
  }

  // Byte of columns 16 d .. of a tile of two panels.
  static DEVICE_FN int panel_step(int d) { return d / 4 * kPanelBytes + d % 4 * 32; }

  // rest = S^T K^T
  DEVICE_FN void start_rest(const Stage& at, Shared<Words4> s_parts, const State& s, Tokens& rest) const {
    const PanelOperand keys = panel_rows(at.keys());
#pragma unroll
    for (int d = 0; d < kDim / 16; ++d) {
      const SplitA a = split(s[2 * d], s[2 * d + 1]);
      put_parts(s_parts, d, a);
      begin_products();
      add_product<T>(rest, a.high, keys.at(panel_step(d)), d > 0);
      add_product<T>(rest, a.low, keys.at(panel_step(d)), true);
      commit_products();
      wait_products<1>();
    }
  }

  // out = x triangle^T, x as its part d of 4
  struct Halves {
    FragmentC first[kTiles], second[kTiles];  // tokens 0 .. 31, 32 .. 63
    DEVICE_FN FragmentC& operator[](int n) { return n < kTiles ? first[n] : second[n - kTiles]; }
  };
  static_assert(kTiles == kHalfCell / 8);
  DEVICE_FN void multiply_column(const char* triangle, int d, const SplitA& a, Halves& out) const {
    constexpr int kPartBytes = kPartWords * sizeof(Words4);
    constexpr int kColumnBytes = kHalfCell * sizeof(Words4);
    const PanelOperand high = block_rows(triangle + 2 * d * kColumnBytes, kColumnBytes);
    const PanelOperand low = high.at(kPartBytes);
    constexpr int kSecond = kHalfCell / 8 * kColumnBytes;
    add_product<T>(out.second, a.high, high.at(kSecond), d > 0);
    add_product<T>(out.second, a.low, high.at(kSecond), true);
    add_product<T>(out.second, a.high, low.at(kSecond), true);
    if (d >= kTiles / 2) return;
    add_product<T>(out.first, a.high, high, d > 0);
    add_product<T>(out.first, a.low, high, true);
    add_product<T>(out.first, a.high, low, true);
  }

  static DEVICE_FN void put_parts(Shared<Words4> parts, int step, const SplitA& a) {
    const int word = step * 2 * kMmaWave + thread_idx() % kMmaWave;
    parts.put(word, {{a.high.v[0], a.high.v[1], a.high.v[2], a.high.v[3]}});
    parts.put(word + kMmaWave, {{a.low.v[0], a.low.v[1], a.low.v[2], a.low.v[3]}});
  }
  static DEVICE_FN SplitA get_parts(Shared<Words4> parts, int step) {
    const int word = step * 2 * kMmaWave + thread_idx() % kMmaWave;
    const Words4 high = parts.get(word), low = parts.get(word + kMmaWave);
    return {{{high.v[0], high.v[1], high.v[2], high.v[3]}}, {{low.v[0], low.v[1], low.v[2], low.v[3]}}};
  }

  // Where this lane's row of tokens 16 n .. 16 n + 15 of the wave's columns lies, for transposed matrices.
  static DEVICE_FN char* matrix_row(char* panel, int n) {
    const int lane = thread_idx() % kMmaWave;
    return panel + panel_byte(n * 16 + lane / 16 * 8 + lane % 8, wave() * 16 + lane / 8 % 2 * 8);
  }
  static DEVICE_FN float half_of(uint32_t word, int which) {
    return bfloat_to_float(static_cast<uint16_t>(which == 0 ? word & 0xffffu : word >> 16));
  }

  // Rows that a short cell lacks are other cells' and may be NaN: they are zero in K and R. In V' and P they
  // are zero by T and P then, and O has them for nobody.
  DEVICE_FN void clear_keys(const Stage& at, int num_rows) const {
    for (int i = num_rows * 8 + thread(); i < kCell * 8; i += kGroupThreads)
      for (int panel = 0; panel < 2; ++panel)
        store_shared(at.keys() + panel * kPanelBytes + i * 16, Vec<uint32_t, 4>{});
    publish_shared();
    meet(1 + kOutputGroups, kGroupThreads);
  }

  // R^T of K S.
  DEVICE_FN void finish_rest(const Stage& at, int num_rows, Tokens& rest) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      uint32_t pairs[4];  // tokens 0-7 of columns 0-7 and 8-15, tokens 8-15
      load_matrices_transposed(pairs, matrix_row(at.values(), n));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Vec<float, 2> factor =
            at.scales().load<2>(Workspace::kOfKeys * kCell + n * 16 + half * 8 + pair());
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& r = rest[2 * n + half].v[e];
          r = half_of(pairs[2 * half + e / 2], e % 2) - factor.v[e % 2] * r;
        }
      }
    }
    if (num_rows == kCell) return;
#pragma unroll
    for (int n = 0; n < kCell / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (n * 8 + pair() + e % 2 >= num_rows) rest[n].v[e] = 0.0f;
  }

  template <class X>
  DEVICE_FN void scale(const Stage& at, int which, X& x) const {
#pragma unroll
    for (int n = 0; n < kCell / 8; ++n) {
      const Vec<float, 2> factor = at.scales().load<2>(which * kCell + n * 8 + pair());
#pragma unroll
      for (int e = 0; e < 4; ++e) x[n].v[e] *= factor.v[e % 2];
    }
  }

  // The output takes z's place. The gates are made while the sums of squares are on their way.
  DEVICE_FN void norm_and_gate(const Shares& shares, int i, const Stage& at, const float (&weights)[2],
                               Tokens& o) const {
    send_squares(shares, i, o);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      uint32_t words[4];
      load_matrices_transposed(words, matrix_row(at.values(), n));
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float gate = half_of(words[2 * half + e / 2], e % 2);
          o[2 * n + half].v[e] *= weights[e / 2] * silu(gate);
        }
    }
    const Vec<float, 2> own = await_scales(shares, i);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      uint32_t words[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int from = (2 * n + half) * 4 + thread_idx() % 4;
        const float scales[2] = {shuffle(own.v[0], from, kMmaWave), shuffle(own.v[1], from, kMmaWave)};
        const FragmentC& y = o[2 * n + half];
#pragma unroll
        for (int c = 0; c < 2; ++c)
          words[2 * half + c] = pack_pair<T>(y.v[2 * c] * scales[0], y.v[2 * c + 1] * scales[1]);
      }
      store_matrices_transposed(matrix_row(at.values(), n), words);
    }
  }

  // Sums of a wave's squares, to both blocks. Lane: tokens 8 g + 2 t and the next.
  static DEVICE_FN int summed_token() { return thread_idx() % kMmaWave / 4 * 8 + pair(); }
  DEVICE_FN void send_squares(const Shares& shares, int i, const Tokens& o) const {
    float squares[kCell / 8][2];
#pragma unroll
    for (int n = 0; n < kCell / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) squares[n][e] = o[n].v[e] * o[n].v[e] + o[n].v[2 + e] * o[n].v[2 + e];
    // Halves of the lanes swap halves of their tokens, three times.
    const int g = thread_idx() % kMmaWave / 4;
#pragma unroll
    for (int count = kCell / 16; count > 0; count /= 2)
#pragma unroll
      for (int n = 0; n < count; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const bool upper = (g & count) != 0;
          const float kept = upper ? squares[n + count][e] : squares[n][e];
          const float given = upper ? squares[n][e] : squares[n + count][e];
          squares[n][e] = kept + shuffle_xor(given, count * 4, kMmaWave);
        }
    float* const place = shares.sums + i % 2 * kSums + (block_idx().x * kWaves + wave()) * kCell;
    uint64_t* const summed = shares.summed + i % 2;
    if (thread() == 0) arrive_with_bytes(summed, kSums * sizeof(float));
#pragma unroll
    for (int rank = 0; rank < 2; ++rank)
      store_pair(pair_address(place + summed_token(), rank), squares[0][0], squares[0][1],
                 pair_address(summed, rank));
  }
  // 1 / root of the mean square, of the same tokens.
  DEVICE_FN Vec<float, 2> await_scales(const Shares& shares, int i) const {
    await_turn(shares.summed, i);
    const Shared<float> all{shares.sums + i % 2 * kSums};  // [2, kWaves, kCell]
    Vec<float, 2> sum = {};
#pragma unroll
    for (int w = 0; w < 2 * kWaves; ++w) {
      const Vec<float, 2> part = all.load<2>(w * kCell + summed_token());
      sum.v[0] += part.v[0];
      sum.v[1] += part.v[1];
    }
    return {{norm.scale(sum.v[0]), norm.scale(sum.v[1])}};
  }

  // And leaves the stage.
  DEVICE_FN void write(const Cell& cell, int head, const Stages& stages, int i) const {
    constexpr int kRowsAtOnce = kGroupThreads / 8;
    meet(1 + i % kOutputGroups, kGroupThreads);
    const int row = thread() / 8, col = thread() % 8 * 8;
    Vec<T, 8> values[kCell / kRowsAtOnce];
#pragma unroll
    for (int w = 0; w < kCell / kRowsAtOnce; ++w)
      values[w] = load_shared<Vec<T, 8>>(stages.of(i).values() + panel_byte(row + w * kRowsAtOnce, col));
    publish_shared();  // the next tile comes to where this one was written
    stages.release(i);
    const Global<T> to = norm.out.row(cell.first_row + row, head) + (block_idx().x * kColumns + col);
#pragma unroll
    for (int w = 0; w < kCell / kRowsAtOnce; ++w)
      if (row + w * kRowsAtOnce < cell.num_rows) to.store<8>(w * kRowsAtOnce * norm.out.stride, values[w]);
  }

  DEVICE_FN void load_state(Global<float> from, bool fresh, State& s) const {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n].v[e] = fresh ? 0.0f : from.get(state_index(n, e));
  }
  DEVICE_FN void store_state(Global<float> to, const State& s) const {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) to.put(state_index(n, e), s[n].v[e]);
  }
  static DEVICE_FN int state_index(int n, int e) {
    return (8 * n + pair() + e % 2) * kDim + block_idx().x * kColumns + column() + e / 2 * 8;
  }
  DEVICE_FN void save(const Cell& cell, int head, const State& s) const {
    for (int i = 0; i < batch.num_checkpoints; ++i) {
      const Global<int32_t> item{reinterpret_cast<int32_t*>(batch.checkpoints.data + i)};
      if (item.get(0) == cell.seq_idx && item.get(1) == cell.position + cell.num_rows)
        store_state(in.state.s(item.get(2), head), s);
    }
  }
#endif
};

// [1, num_heads, panels, num_tokens, kPanelCols]: boxes of num_panels panels of a cell's tokens.
bool describe_heads(const TensorView& view, int num_panels, CUtensorMap& map) {
  const auto size = [](Index elements) { return static_cast<cuuint64_t>(elements); };
  const cuuint64_t token_bytes = size(view.stride(0)) * sizeof(T),
                   head_bytes = size(view.stride(1)) * sizeof(T);
  return describe_boxes({.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                         .data = view.data,
                         .shape = {kPanelCols, size(view.dim(0)), kDim / kPanelCols, size(view.dim(1)), 1},
                         .stride_bytes = {token_bytes, kPanelCols * sizeof(T), head_bytes, head_bytes},
                         .box = {kPanelCols, kCell, static_cast<cuuint32_t>(num_panels), 1, 1}},
                        map);
}

}  // namespace

bool scan_cells_wgmma(const Context& context, const GatedDelta& args, const Batch& batch) {
  const DeviceInfo& info = context.device.info();
  if (info.arch != "sm_90" || info.shared_bytes < WgmmaScanKernel::kSharedBytes) return false;
  WgmmaScanKernel kernel{.in = gdn_inputs<T>(args), .norm = gated_norm<T>(args), .batch = batch};
  if (!describe_heads(args.k, 2, kernel.k_map) || !describe_heads(args.q, 2, kernel.q_map) ||
      !describe_heads(args.v, 1, kernel.v_map) || !describe_heads(args.z, 1, kernel.z_map))
    return false;
  launch(
      context.device,
      {.name = "gdn_wgmma_scan",
       .grid = {kDim / WgmmaScanKernel::kColumns, static_cast<int>(args.state.num_v_heads), batch.num_seqs},
       .shared_bytes = WgmmaScanKernel::kSharedBytes},
      kernel);
  return true;
}

}  // namespace longspan::ops::device::gdn
