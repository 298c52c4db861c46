// Blocks of the integer product: S[r, n] = sum over k of q[r, k] * w[n, k], with int16 rows and int8 weights.
//
// The same source is compiled once for each instruction set. Integer sums are exact, so every one gives the same result.
#pragma once

#include <cstdint>

namespace jaxfold {

// q int16[rows, stride] (rows padded with zeros to the stride), w int8[outputs, k] with rows at `w_stride` bytes.
// Writes float32 y[r * y_stride + n] = float(S) * (step[r] * scale[n]).
using TileFn = void (*)(const int16_t* q, int64_t stride, int64_t rows, const int8_t* w, int64_t k, int64_t outputs,
                        const float* step, const float* scale, float* y, int64_t y_stride);

void tile_avx2(const int16_t* q, int64_t stride, int64_t rows, const int8_t* w, int64_t k, int64_t outputs,
               const float* step, const float* scale, float* y, int64_t y_stride);
void tile_avx512vnni(const int16_t* q, int64_t stride, int64_t rows, const int8_t* w, int64_t k, int64_t outputs,
                     const float* step, const float* scale, float* y, int64_t y_stride);

}  // namespace jaxfold
