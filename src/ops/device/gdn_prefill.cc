// Prompt chunks of the gated delta rule in the 64-token WY form (MODEL 2.8), on the absolute grid: cells are
// the grid's squares, and a chunk that begins or ends inside one brings a short cell. Three kernels over a
// batch of cells: what a cell needs of itself, the states from cell to cell, norm and gate.
#include <algorithm>

#include "ops/device/gdn.h"
#include "ops/device/gdn_cells.h"

namespace longspan::ops::device {
namespace {

constexpr int kCellsAtOnce = 32;  // bounds the workspace
constexpr int kSlice = 32;        // columns of S that one block of the scan owns

// What the first kernel leaves for the second, per cell and value head; rows beyond the cell's are zero.
struct Workspace {
  Global<float> u;      // [kCell, v_pad]: T (beta V); later o
  Global<float> w;      // [kCell, k_pad]: T (beta e^G K)
  Global<float> q;      // [kCell, k_pad]: e^G q
  Global<float> k;      // [kCell, k_pad]: e^(G_last - G) k
  Global<float> p;      // [kCell, kCell]: q k^T decayed, lower triangle
  Global<float> decay;  // [1]: e^G_last
  int k_pad;            // a multiple of kSlice
  int v_pad;
  int num_heads;

  static int64_t floats(int k_pad, int v_pad) { return kCell * (v_pad + 3 * k_pad + kCell) + 16; }
  DEVICE_FN Workspace of(int cell, int head) const {
    const int64_t i = static_cast<int64_t>(cell) * num_heads + head;
    return {u + i * kCell * v_pad,
            w + i * kCell * k_pad,
            q + i * kCell * k_pad,
            k + i * kCell * k_pad,
            p + i * kCell * kCell,
            decay + i,
            k_pad,
            v_pad,
            num_heads};
  }
};

// Block (cell, value head).
template <int kWave, class T>
struct CellKernel {
  static constexpr int kThreads = 128;
  static constexpr int kStep = 32;          // of k_dim at a time
  static constexpr int kPitch = kStep + 4;  // neighbouring rows four banks apart, in whole words
  static constexpr int kSolvePitch = kCell + 4;
  static constexpr size_t kSharedBytes = 2 * shared_bytes<float>(kCell * kPitch) +
                                         shared_bytes<float>(kCell * kSolvePitch) +
                                         4 * shared_bytes<float>(kCell) + shared_bytes<double>(kCell);
  GdnInputs<T> in;
  CellTable cells;
  Workspace workspace;
  int first_cell;

  struct Rows {             // of one cell, in shared memory
    Shared<float> q_scale;  // 1 / |q|, with k_dim^-1/2
    Shared<float> k_scale;
    Shared<float> beta;
    Shared<float> decay;  // e^G
    Shared<double> g;     // G: sums of log decays. Differences of large ones cancel, hence double
  };

  DEVICE_FN void operator()() const {
    const Cell cell = cells.find(first_cell + block_idx().x);
    if (cell.seq_idx < 0) return;
    const int head = block_idx().y;
    const int key_head = head / in.heads_per_key;
    const Workspace out = workspace.of(block_idx().x, head);
    SharedPool pool;
    const Shared<float> q_tile = pool.take<float>(kCell * kPitch);
    const Shared<float> k_tile = pool.take<float>(kCell * kPitch);
    const Shared<float> a = pool.take<float>(kCell * kSolvePitch);
    const Rows rows{pool.take<float>(kCell), pool.take<float>(kCell), pool.take<float>(kCell),
                    pool.take<float>(kCell), pool.take<double>(kCell)};
    scan_rows(cell, head, key_head, rows);
    block_sync();
    products(cell, key_head, rows, q_tile, k_tile, a, out.p);
    block_sync();
    solve(cell, head, key_head, rows, a, out);
    scaled_rows(cell, key_head, rows, out);
  }

  // Norms by wave, gates by thread, the running sum by one.
  DEVICE_FN void scan_rows(const Cell& cell, int head, int key_head, const Rows& rows) const {
    const int k_dim = in.state.k_dim;
    for (int i = Wave<kWave>::index(); i < kCell; i += kThreads / kWave) {
      float q_squares = 0.0f, k_squares = 0.0f;
      if (i < cell.num_rows) {
        const Global<T> q = in.q.row(cell.first_row + i, key_head);
        const Global<T> k = in.k.row(cell.first_row + i, key_head);
        for (int d = Wave<kWave>::lane(); d < k_dim; d += kWave) {
          q_squares += q.at(d) * q.at(d);
          k_squares += k.at(d) * k.at(d);
        }
      }
      q_squares = Wave<kWave>::sum(q_squares);
      k_squares = Wave<kWave>::sum(k_squares);
      if (Wave<kWave>::lane() == 0) {
        rows.q_scale.put(i, 1.0f / sqrtf(q_squares + 1e-6f) / sqrtf(static_cast<float>(k_dim)));
        rows.k_scale.put(i, 1.0f / sqrtf(k_squares + 1e-6f));
      }
    }
    for (int i = thread_idx(); i < kCell; i += kThreads) {
      const bool inside = i < cell.num_rows;
      rows.beta.put(i, inside ? in.beta(cell.first_row + i, head) : 0.0f);
      rows.g.put(i, inside ? static_cast<double>(in.log_decay(cell.first_row + i, head)) : 0.0);
    }
    block_sync();
    if (thread_idx() == 0) {
      double sum = 0.0;
      for (int i = 0; i < kCell; ++i) {
        sum += rows.g.get(i);
        rows.g.put(i, sum);
        rows.decay.put(i, expf(static_cast<float>(sum)));
      }
    }
  }

  // a = strictly lower beta_i (k_i k_j) D_ij, p = lower (q_i k_j) D_ij with D_ij = e^(G_i - G_j). A thread
  // holds 4 x 8 of each.
  DEVICE_FN void products(const Cell& cell, int key_head, const Rows& rows, Shared<float> q_tile,
                          Shared<float> k_tile, Shared<float> a, Global<float> p) const {
    const int ty = thread_idx() / 8;  // rows ty, ty + 16, ...
    const int tx = thread_idx() % 8;  // columns tx, tx + 8, ...
    float kk[4][8] = {}, qk[4][8] = {};
    for (int d0 = 0; d0 < in.state.k_dim; d0 += kStep) {
      for (int i = thread_idx(); i < kCell * kStep; i += kThreads) {
        const int row = i / kStep;
        const int d = d0 + i % kStep;
        const bool inside = row < cell.num_rows && d < in.state.k_dim;
        const int at = row * kPitch + i % kStep;
        q_tile.put(at,
                   inside ? in.q.row(cell.first_row + row, key_head).at(d) * rows.q_scale.get(row) : 0.0f);
        k_tile.put(at,
                   inside ? in.k.row(cell.first_row + row, key_head).at(d) * rows.k_scale.get(row) : 0.0f);
      }
      block_sync();
      for (int d = 0; d < kStep; d += 4) {
        Vec<float, 4> columns[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) columns[j] = k_tile.load<4>((tx + 8 * j) * kPitch + d);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const Vec<float, 4> k = k_tile.load<4>((ty + 16 * i) * kPitch + d);
          const Vec<float, 4> q = q_tile.load<4>((ty + 16 * i) * kPitch + d);
#pragma unroll
          for (int e = 0; e < 4; ++e)
#pragma unroll
            for (int j = 0; j < 8; ++j) {
              kk[i][j] += k.v[e] * columns[j].v[e];
              qk[i][j] += q.v[e] * columns[j].v[e];
            }
        }
      }
      block_sync();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int row = ty + 16 * i;
        const int col = tx + 8 * j;
        const float d = row >= col ? expf(static_cast<float>(rows.g.get(row) - rows.g.get(col))) : 0.0f;
        a.put(row * kSolvePitch + col, row > col ? rows.beta.get(row) * kk[i][j] * d : 0.0f);
        p.put(row * kCell + col, qk[i][j] * d);
      }
  }

  // Columns of (I + a) X = [beta V | beta e^G K], one a thread, from the top row down.
  DEVICE_FN void solve(const Cell& cell, int head, int key_head, const Rows& rows, Shared<float> a,
                       const Workspace& out) const {
    for (int column = thread_idx(); column < out.v_pad + out.k_pad; column += kThreads) {
      const bool is_v = column < out.v_pad;
      const int c = is_v ? column : column - out.v_pad;
      float x[kCell] = {};
#pragma unroll
      for (int i = 0; i < kCell; ++i) {
        float value = 0.0f;
        if (i < cell.num_rows) {
          if (is_v && c < in.state.v_dim) value = in.v.row(cell.first_row + i, head).at(c);
          if (!is_v && c < in.state.k_dim)
            value = in.k.row(cell.first_row + i, key_head).at(c) * rows.k_scale.get(i) * rows.decay.get(i);
        }
        value *= rows.beta.get(i);
#pragma unroll
        for (int j = 0; j < i; j += 4) {  // a is zero from its diagonal on, and so is x
          const Vec<float, 4> factors = a.load<4>(i * kSolvePitch + j);
#pragma unroll
          for (int e = 0; e < 4; ++e) value -= factors.v[e] * x[j + e];
        }
        x[i] = value;
        if (is_v)
          out.u.put(i * out.v_pad + c, value);
        else
          out.w.put(i * out.k_pad + c, value);
      }
    }
  }

  DEVICE_FN void scaled_rows(const Cell& cell, int key_head, const Rows& rows, const Workspace& out) const {
    const double total = rows.g.get(kCell - 1);
    for (int i = thread_idx(); i < kCell * out.k_pad; i += kThreads) {
      const int row = i / out.k_pad;
      const int d = i % out.k_pad;
      float q = 0.0f, k = 0.0f;
      if (row < cell.num_rows && d < in.state.k_dim) {
        q = in.q.row(cell.first_row + row, key_head).at(d) * rows.q_scale.get(row) * rows.decay.get(row);
        k = in.k.row(cell.first_row + row, key_head).at(d) * rows.k_scale.get(row) *
            expf(static_cast<float>(total - rows.g.get(row)));
      }
      out.q.put(i, q);
      out.k.put(i, k);
    }
    if (thread_idx() == 0) out.decay.put(0, rows.decay.get(kCell - 1));
  }
};

// Block (slice of v_dim, value head, sequence): the batch's cells of that sequence in order, S in shared
// memory. V' = U - W S;  O = (e^G Q) S + P V';  S <- e^G_last S + (e^(G_last - G) K)^T V'.
template <class T>
struct ScanKernel {
  static constexpr int kThreads = 256;
  static constexpr int kGroups = kThreads / kSlice;  // of threads that share no column
  static constexpr int kRowsPerThread = kCell / kGroups;
  GdnInputs<T> in;
  CellTable cells;
  Workspace workspace;
  Global<StateCheckpoint> checkpoints;
  int num_checkpoints;
  int first_cell;
  int num_cells;

  static size_t shared_size(int k_pad) {
    return shared_bytes<float>(k_pad * kSlice) + shared_bytes<float>(kCell * kSlice);
  }

  DEVICE_FN void operator()() const {
    const int head = block_idx().y;
    const int seq_idx = cells.first_seq + block_idx().z;
    SharedPool pool;
    const Shared<float> s = pool.take<float>(workspace.k_pad * kSlice);  // [k_pad, kSlice]
    const Shared<float> v = pool.take<float>(kCell * kSlice);            // V' [kCell, kSlice]
    const Global<float> own = in.state.s(in.pages.get(seq_idx), head);
    bool loaded = false;
    for (int i = 0; i < num_cells; ++i) {
      const Cell cell = cells.find(first_cell + i);
      if (cell.seq_idx != seq_idx) continue;
      if (!loaded) load_state(own, cell.position == 0, s);
      loaded = true;
      block_sync();
      step(workspace.of(i, head), s, v);
      save(cell, head, s);
    }
    if (loaded) store_state(own, s);
  }

  DEVICE_FN int column() const { return block_idx().x * kSlice + thread_idx() % kSlice; }

  // Each thread loads, updates and stores the same elements, so these need no barrier of their own.
  DEVICE_FN void load_state(Global<float> from, bool fresh, Shared<float> s) const {
    for (int k = thread_idx() / kSlice; k < workspace.k_pad; k += kGroups) {
      const bool inside = !fresh && k < in.state.k_dim && column() < in.state.v_dim;
      s.put(k * kSlice + thread_idx() % kSlice,
            inside ? from.get(static_cast<int64_t>(k) * in.state.v_dim + column()) : 0.0f);
    }
  }
  DEVICE_FN void store_state(Global<float> to, Shared<float> s) const {
    block_sync();
    if (column() >= in.state.v_dim) return;
    for (int k = thread_idx() / kSlice; k < in.state.k_dim; k += kGroups)
      to.put(static_cast<int64_t>(k) * in.state.v_dim + column(), s.get(k * kSlice + thread_idx() % kSlice));
  }

  DEVICE_FN void step(const Workspace& from, Shared<float> s, Shared<float> v) const {
    const int lane = thread_idx() % kSlice;
    const int row0 = thread_idx() / kSlice * kRowsPerThread;
    const int k_pad = from.k_pad;
    float rest[kRowsPerThread], o[kRowsPerThread] = {};
#pragma unroll
    for (int i = 0; i < kRowsPerThread; ++i)
      rest[i] = from.u.get(static_cast<int64_t>(row0 + i) * from.v_pad + column());
    for (int k = 0; k < k_pad; k += 4) {
      float column_s[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) column_s[e] = s.get((k + e) * kSlice + lane);
#pragma unroll
      for (int i = 0; i < kRowsPerThread; ++i) {
        const Vec<float, 4> w = from.w.template load<4>((row0 + i) * k_pad + k);
        const Vec<float, 4> q = from.q.template load<4>((row0 + i) * k_pad + k);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          rest[i] -= w.v[e] * column_s[e];
          o[i] += q.v[e] * column_s[e];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsPerThread; ++i) v.put((row0 + i) * kSlice + lane, rest[i]);
    block_sync();
    for (int j = 0; j < row0 + kRowsPerThread; j += 4) {  // p is zero above its diagonal
      float column_v[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) column_v[e] = v.get((j + e) * kSlice + lane);
#pragma unroll
      for (int i = 0; i < kRowsPerThread; ++i) {
        const Vec<float, 4> p = from.p.template load<4>((row0 + i) * kCell + j);
#pragma unroll
        for (int e = 0; e < 4; ++e) o[i] += p.v[e] * column_v[e];
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsPerThread; ++i)
      from.u.put(static_cast<int64_t>(row0 + i) * from.v_pad + column(), o[i]);
    add_keys(from, s, v);
  }

  // A thread owns four rows of S in each kGroups * 4.
  DEVICE_FN void add_keys(const Workspace& from, Shared<float> s, Shared<float> v) const {
    const int lane = thread_idx() % kSlice;
    const float decay = from.decay.get(0);
    for (int k = thread_idx() / kSlice * 4; k < from.k_pad; k += kGroups * 4) {
      float sums[4] = {};
      for (int i = 0; i < kCell; ++i) {
        const Vec<float, 4> keys = from.k.template load<4>(i * from.k_pad + k);
        const float value = v.get(i * kSlice + lane);
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[e] += keys.v[e] * value;
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = (k + e) * kSlice + lane;
        s.put(at, decay * s.get(at) + sums[e]);
      }
    }
  }

  DEVICE_FN void save(const Cell& cell, int head, Shared<float> s) const {
    for (int i = 0; i < num_checkpoints; ++i) {
      const Global<int32_t> item{reinterpret_cast<int32_t*>(checkpoints.data + i)};
      if (item.get(0) == cell.seq_idx && item.get(1) == cell.position + cell.num_rows)
        store_state(in.state.s(item.get(2), head), s);
    }
  }
};

// Wave: one token of one value head.
template <int kWave, class T>
struct OutputKernel {
  static constexpr int kThreads = 256;
  static constexpr int kRowsPerBlock = kThreads / kWave;
  CellTable cells;
  Workspace workspace;
  GatedNorm<T> norm;
  int first_cell;

  DEVICE_FN void operator()() const {
    const Cell cell = cells.find(first_cell + block_idx().x);
    const int head = block_idx().y;
    const int row = block_idx().z * kRowsPerBlock + Wave<kWave>::index();
    if (cell.seq_idx < 0 || row >= cell.num_rows) return;
    const Global<float> o = workspace.of(block_idx().x, head).u + static_cast<int64_t>(row) * workspace.v_pad;
    float squares = 0.0f;
    for (int c = Wave<kWave>::lane(); c < norm.v_dim; c += kWave) squares += o.get(c) * o.get(c);
    const float scale = norm.scale(Wave<kWave>::sum(squares));
    const int64_t token = cell.first_row + row;
    for (int c = Wave<kWave>::lane(); c < norm.v_dim; c += kWave)
      norm.write(token, head, c, o.get(c) * scale * norm.norm.get(c), norm.z.row(token, head).at(c));
  }
};

Workspace make_workspace(const Context& context, const StateCache& state, int num_cells) {
  const int k_pad = ceil_div(state.k_dim, kSlice) * kSlice;
  const int v_pad = ceil_div(state.v_dim, kSlice) * kSlice;
  const int64_t count = num_cells * state.num_v_heads;
  auto* next = static_cast<float*>(
      context.scratch.reserve(static_cast<size_t>(count * Workspace::floats(k_pad, v_pad)) * sizeof(float)));
  const auto take = [&](int64_t floats) {
    float* const at = next;
    next += count * floats;
    return Global<float>{at};
  };
  Workspace workspace{.k_pad = k_pad, .v_pad = v_pad, .num_heads = static_cast<int>(state.num_v_heads)};
  workspace.u = take(kCell * v_pad);
  workspace.w = take(kCell * k_pad);
  workspace.q = take(kCell * k_pad);
  workspace.k = take(kCell * k_pad);
  workspace.p = take(kCell * kCell);
  workspace.decay = take(1);
  return workspace;
}

}  // namespace

void gdn_prefill(const Context& context, const GatedDelta& args) {
  const int first_seq = static_cast<int>(args.seqs.num_decode_seqs);
  const int num_seqs = static_cast<int>(args.seqs.num_seqs) - first_seq;
  const int num_heads = static_cast<int>(args.state.num_v_heads);
  const int num_cells = max_cells(args.q.dim(0) - first_seq, num_seqs);
  const Workspace workspace = make_workspace(context, args.state, std::min(num_cells, kCellsAtOnce));
  const CellTable cells{seq_table(args.seqs), first_seq, first_seq + num_seqs};
  const Global<StateCheckpoint> checkpoints = upload_checkpoints(context, args.checkpoints);
  dispatch_element(args.q.dtype, [&]<class T>() {
    dispatch_wave(context.device, [&]<int kWave>() {
      for (int first = 0; first < num_cells; first += kCellsAtOnce) {
        const int count = std::min(kCellsAtOnce, num_cells - first);
        using CellOf = CellKernel<kWave, T>;
        launch(context.device,
               {.name = "gdn_cells", .grid = {count, num_heads}, .shared_bytes = CellOf::kSharedBytes},
               CellOf{gdn_inputs<T>(args), cells, workspace, first});
        launch(context.device,
               {.name = "gdn_scan",
                .grid = {workspace.v_pad / kSlice, num_heads, num_seqs},
                .shared_bytes = ScanKernel<T>::shared_size(workspace.k_pad)},
               ScanKernel<T>{.in = gdn_inputs<T>(args),
                             .cells = cells,
                             .workspace = workspace,
                             .checkpoints = checkpoints,
                             .num_checkpoints = static_cast<int>(args.checkpoints.size()),
                             .first_cell = first,
                             .num_cells = count});
        using Output = OutputKernel<kWave, T>;
        launch(context.device,
               {.name = "gdn_output", .grid = {count, num_heads, kCell / Output::kRowsPerBlock}},
               Output{cells, workspace, gated_norm<T>(args), first});
      }
    });
  });
}

}  // namespace longspan::ops::device
