// Matrix units and asynchronous copies of the emulator, for waves of 32 or halves of 64. It knows of the
// machine what emulator.h says.
#include "ops/device/emulator.h"

namespace longspan::ops::device {
namespace {

using emulator::Collective;

constexpr int kMmaWave = 32;
constexpr size_t kRowBytes = 16;  // of a matrix

void load_matrices_any(uint32_t (&out)[4], const void* row, bool transposed, const Site& where) {
  const int base = thread_idx() % kMaxWave / kMmaWave * kMmaWave;
  // The lane that names a row reads it.
  const bool readable = emulator::may_access_shared(row, kRowBytes, /*write=*/false);
  const uint64_t* rows =
      base + emulator::collective(Collective::kExchange, readable ? reinterpret_cast<uintptr_t>(row) : 0,
                                  kMmaWave, where);
  const auto element = [&](int matrix, int r, int c) {
    const auto* const from = reinterpret_cast<const uint16_t*>(rows[8 * matrix + r]);
    return from == nullptr ? emulator::poison<uint16_t>() : from[c];
  };
  const int lane = thread_idx() % kMmaWave;
  const int g = lane / 4, t = 2 * (lane % 4);
  for (int i = 0; i < 4; ++i)
    out[i] = transposed ? element(i, t, g) | uint32_t{element(i, t + 1, g)} << 16
                        : element(i, g, t) | uint32_t{element(i, g, t + 1)} << 16;
}

// A lane's part of a product; the layout is mma.h's.
struct Product {
  float* c;
  const uint32_t* a;
  const uint32_t* b;
};

template <float (*to_float)(uint16_t)>
void multiply(uint64_t* products, int num_lanes) {
  const auto unpack = [](uint32_t word, float* to, int step) {
    to[0] = to_float(static_cast<uint16_t>(word));
    to[step] = to_float(static_cast<uint16_t>(word >> 16));
  };
  for (int first = 0; first < num_lanes; first += kMmaWave) {
    float a[16][16], b[16][8], c[16][8];
    const auto part = [&](int lane) { return reinterpret_cast<Product*>(products[first + lane]); };
    for (int lane = 0; lane < kMmaWave; ++lane) {
      const Product& mine = *part(lane);
      const int g = lane / 4, t = 2 * (lane % 4);
      for (int i = 0; i < 4; ++i) {
        unpack(mine.a[i], &a[g + i % 2 * 8][t + i / 2 * 8], 1);
        c[g + i / 2 * 8][t + i % 2] = mine.c[i];
      }
      for (int i = 0; i < 2; ++i) unpack(mine.b[i], &b[t + i * 8][g], 8);
    }
    for (int row = 0; row < 16; ++row)
      for (int k = 0; k < 16; ++k)
        for (int col = 0; col < 8; ++col) c[row][col] += a[row][k] * b[k][col];
    for (int lane = 0; lane < kMmaWave; ++lane)
      for (int i = 0; i < 4; ++i) part(lane)->c[i] = c[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2];
  }
}

void multiply_together(Product mine, emulator::WaveWork work, const Site& where) {
  emulator::work_together(work, reinterpret_cast<uintptr_t>(&mine), kMmaWave, where);
}

}  // namespace

void load_matrices(uint32_t (&out)[4], const void* row, const Site& where) {
  load_matrices_any(out, row, /*transposed=*/false, where);
}
void load_matrices_transposed(uint32_t (&out)[4], const void* row, const Site& where) {
  load_matrices_any(out, row, /*transposed=*/true, where);
}
void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const Site& where) {
  multiply_together({c, a, b}, multiply<bfloat_to_float>, where);
}
void mma_f16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const Site& where) {
  multiply_together({c, a, b}, multiply<emulator::half_to_float>, where);
}

void copy_async(void* shared, const void* global, bool present) {
  emulator::add_copy(shared, present ? global : nullptr);
}
void commit_copies() { emulator::commit_copies(); }
void wait_copies_but(int num_open) { emulator::wait_copies(num_open); }

}  // namespace longspan::ops::device
