// AVX-512 with VNNI: 32 products an instruction, added to int32 sums in the same one.
#include <immintrin.h>

#include "tile.h"

namespace jaxfold {
namespace {
struct Simd {
  using Row = __m512i;
  using Sum = __m512i;
  static constexpr int64_t kWidth = 32;
  static Sum zero() { return _mm512_setzero_si512(); }
  static Row widen(const int8_t* p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Sum dot(Sum sum, const int16_t* row, Row weight) {
    return _mm512_dpwssd_epi32(sum, weight, _mm512_loadu_si512(row));
  }
  static int32_t reduce(Sum sum) { return _mm512_reduce_add_epi32(sum); }
};
}  // namespace
}  // namespace jaxfold

#include "tile_body.h"

namespace jaxfold {
void tile_avx512vnni(const int16_t* q, int64_t stride, int64_t rows, const int8_t* w, int64_t k, int64_t outputs,
                     const float* step, const float* scale, float* y, int64_t y_stride) {
  tile(q, stride, rows, w, k, outputs, step, scale, y, y_stride);
}
}  // namespace jaxfold
