// AVX2: 16 products an instruction, pairs summed to int32.
#include <immintrin.h>

#include "tile.h"

namespace jaxfold {
namespace {
struct Simd {
  using Row = __m256i;
  using Sum = __m256i;
  struct Operand {
    int16_t values[16];
  };
  static constexpr int64_t kWidth = 16;
  static Sum zero() { return _mm256_setzero_si256(); }
  static Row widen(const int8_t* p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  // The row stays a memory operand: compilers would load every row of a block into registers, and spill the sums.
  static Sum dot(Sum sum, const int16_t* row, Row weight) {
    Sum pairs;
    asm("vpmaddwd %2, %1, %0" : "=x"(pairs) : "x"(weight), "m"(*reinterpret_cast<const Operand*>(row)));
    return _mm256_add_epi32(sum, pairs);
  }
  static int32_t reduce(Sum sum) {
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    return _mm_cvtsi128_si32(half);
  }
};
}  // namespace
}  // namespace jaxfold

#include "tile_body.h"

namespace jaxfold {
void tile_avx2(const int16_t* q, int64_t stride, int64_t rows, const int8_t* w, int64_t k, int64_t outputs,
               const float* step, const float* scale, float* y, int64_t y_stride) {
  tile(q, stride, rows, w, k, outputs, step, scale, y, y_stride);
}
}  // namespace jaxfold
