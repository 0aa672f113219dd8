// Softmax of rows whose scores come in tiles, on fragments of matrix units (mma.h, hopper.h): one arithmetic
// for all kernels that keep it, so that their bits are equal.
#pragma once

#include "ops/device/mma.h"
#include "ops/device/wave.h"

namespace longspan::ops::device {

// Of the two rows that a lane holds, g and g + 8.
struct SoftRow {
  float max = -INFINITY;  // of all scores so far
  float weight = 0.0f;    // sum of probabilities in this lane's columns
  float shrink = 0.0f;    // what earlier sums are to be multiplied by; 1 where the maximum stayed
};

// Scores [16, 8 kCount] of keys from key0 on become exp2((score - max) * scale_log2), not rounded. Row g has
// `position` and sees keys up to it. Every row sees key 0, so its maximum is finite after the first tile.
template <int kCount>
DEVICE_FN void soften(FragmentC (&score)[kCount], SoftRow (&rows)[2], int key0, int position,
                      float scale_log2) {
  const int lane = thread_idx() % kMmaWave;
  const bool all_see_all = key0 + 8 * kCount - 1 <= position - lane / 4;  // one answer a wave
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    SoftRow& row = rows[half];
    const int limit = position + 8 * half - key0 - 2 * (lane % 4);
    float max = row.max;
#pragma unroll
    for (int n = 0; n < kCount; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& s = score[n].v[2 * half + e];
        if (!all_see_all && 8 * n + e > limit) s = -INFINITY;
        max = fmaxf(max, s);
      }
    max = group_max<4>(max);
    const float scaled_max = max * scale_log2;
    float weight = 0.0f;
#pragma unroll
    for (int n = 0; n < kCount; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& s = score[n].v[2 * half + e];
        s = exp2_approx(fmaf(s, scale_log2, -scaled_max));
        weight += s;
      }
    row.shrink = exp2_approx((row.max - max) * scale_log2);
    row.weight = fmaf(row.weight, row.shrink, weight);
    row.max = max;
  }
}

}  // namespace longspan::ops::device
