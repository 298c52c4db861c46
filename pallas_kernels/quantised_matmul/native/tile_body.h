// The loop over blocks, for a `Simd` that the including file defines. Included once in each tile_*.cc.
#pragma once

#include "tile.h"

namespace jaxfold {
namespace {

constexpr int kOutputs = 4;  // weight rows of a block
constexpr int kRows = 3;     // activation rows of a block: with 12 sums, a weight and a product 14 registers are taken
constexpr int kAhead = 8;    // weight rows that are asked from memory before their turn

// Rows that stay in the first-level cache while the weights of a task pass by.
constexpr int64_t kRowBlock = 12;

template <int R, int N>
inline __attribute__((always_inline)) void block(const int16_t* q, int64_t stride, const int8_t* w, int64_t k,
                                                 const float* step, const float* scale, float* y, int64_t y_stride) {
  typename Simd::Sum sums[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) sums[r][n] = Simd::zero();
  const int64_t whole = k / Simd::kWidth * Simd::kWidth;
  for (int64_t i = 0; i < whole; i += Simd::kWidth) {
    for (int n = 0; n < N; ++n) {
      const int8_t* weights = w + n * k + i;
      __builtin_prefetch(weights + kAhead * k);
      const typename Simd::Row weight = Simd::widen(weights);
      for (int r = 0; r < R; ++r) sums[r][n] = Simd::dot(sums[r][n], q + r * stride + i, weight);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) {
      int32_t total = Simd::reduce(sums[r][n]);
      for (int64_t i = whole; i < k; ++i) total += int32_t{q[r * stride + i]} * int32_t{w[n * k + i]};
      const float factor = step[r] * scale[n];
      y[r * y_stride + n] = static_cast<float>(total) * factor;
    }
  }
}

template <int N>
inline __attribute__((always_inline)) void column(const int16_t* q, int64_t stride, int64_t rows, const int8_t* w,
                                                  int64_t k, const float* step, const float* scale, float* y,
                                                  int64_t y_stride) {
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows)
    block<kRows, N>(q + r * stride, stride, w, k, step + r, scale, y + r * y_stride, y_stride);
  if (rows - r == 2) block<2, N>(q + r * stride, stride, w, k, step + r, scale, y + r * y_stride, y_stride);
  if (rows - r == 1) block<1, N>(q + r * stride, stride, w, k, step + r, scale, y + r * y_stride, y_stride);
}

inline __attribute__((always_inline)) void tile(const int16_t* q, int64_t stride, int64_t rows, const int8_t* w,
                                                int64_t k, int64_t outputs, const float* step, const float* scale,
                                                float* y, int64_t y_stride) {
  for (int64_t first = 0; first < rows; first += kRowBlock) {
    const int64_t count = rows - first < kRowBlock ? rows - first : kRowBlock;
    const int16_t* q_block = q + first * stride;
    float* y_block = y + first * y_stride;
    int64_t n = 0;
    for (; n + kOutputs <= outputs; n += kOutputs)
      column<kOutputs>(q_block, stride, count, w + n * k, k, step + first, scale + n, y_block + n, y_stride);
    for (; n < outputs; ++n)
      column<1>(q_block, stride, count, w + n * k, k, step + first, scale + n, y_block + n, y_stride);
  }
}

}  // namespace
}  // namespace jaxfold
