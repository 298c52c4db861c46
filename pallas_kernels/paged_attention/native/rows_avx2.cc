// AVX2 and FMA. Every sum has a fixed order: compile with -ffp-contract=off.
#include <immintrin.h>

#include <cmath>
#include <limits>

#include "rows.h"

namespace jaxfold {
namespace {

constexpr int kKeys = 4;   // keys of a score tile
constexpr int kRows = 3;   // query rows of a tile: 12 sums, a key and a query
constexpr int kLanes = 4;  // vectors of a value tile: 32 of a head's dimensions

// e^x for x <= 0 within 1 ulp or so: 2^n times a polynomial in the rest (the Cephes library's coefficients).
inline __m256 exponential(__m256 x) {
  x = _mm256_max_ps(x, _mm256_set1_ps(-87.3365478515625f));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504088896341f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  x = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
  x = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), x);
  __m256 y = _mm256_set1_ps(1.9875691500e-4f);
  y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(1.3981999507e-3f));
  y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(8.3334519073e-3f));
  y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(4.1665795894e-2f));
  y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(1.6666665459e-1f));
  y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(5.0000001201e-1f));
  y = _mm256_fmadd_ps(y, _mm256_mul_ps(x, x), _mm256_add_ps(x, _mm256_set1_ps(1.0f)));
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(y, _mm256_castsi256_ps(power));
}

// cap * tanh(score / cap), from e^(-2 |x|) so that nothing overflows.
inline __m256 soft_cap(__m256 score, float cap) {
  const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
  const __m256 x = _mm256_mul_ps(score, _mm256_set1_ps(1.0f / cap));
  const __m256 small = exponential(_mm256_mul_ps(_mm256_set1_ps(-2.0f), _mm256_andnot_ps(sign, x)));
  const __m256 size = _mm256_div_ps(_mm256_sub_ps(one, small), _mm256_add_ps(one, small));
  return _mm256_mul_ps(_mm256_or_ps(size, _mm256_and_ps(sign, x)), _mm256_set1_ps(cap));
}

inline float reduce(__m256 v) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

inline float largest(__m256 v) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

// scores[r][key] = query . key, for every key of the block.
template <int R>
void score(const Block& block, const Row* rows, float (*scores)[kBlock]) {
  for (int64_t key = 0; key < kBlock; key += kKeys) {
    __m256 sums[R][kKeys];
    for (int r = 0; r < R; ++r)
      for (int k = 0; k < kKeys; ++k) sums[r][k] = _mm256_setzero_ps();
    const float* keys = block.keys + key * block.dim;
    for (int64_t d = 0; d < block.dim; d += 8) {
      for (int k = 0; k < kKeys; ++k) {
        const __m256 value = _mm256_loadu_ps(keys + k * block.dim + d);
        for (int r = 0; r < R; ++r)
          sums[r][k] = _mm256_fmadd_ps(value, _mm256_loadu_ps(rows[r].query + d), sums[r][k]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int k = 0; k < kKeys; ++k) scores[r][key + k] = reduce(sums[r][k]);
  }
}

// Scores to weights, the row's sums rescaled to its new largest score. A key that the row does not see weighs 0.
void weigh(const Block& block, const Row& row, float* scores) {
  const __m256i steps = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i from = _mm256_set1_epi32(static_cast<int32_t>(row.from - block.first - 1));
  const __m256i to = _mm256_set1_epi32(static_cast<int32_t>(row.to - block.first));
  const __m256 never = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
  __m256 best = never;
  for (int64_t i = 0; i < kBlock; i += 8) {
    const __m256i key = _mm256_add_epi32(steps, _mm256_set1_epi32(static_cast<int32_t>(i)));
    const __m256i seen = _mm256_and_si256(_mm256_cmpgt_epi32(key, from), _mm256_cmpgt_epi32(to, key));
    __m256 score = _mm256_mul_ps(_mm256_loadu_ps(scores + i), _mm256_set1_ps(block.scale));
    if (block.cap > 0.0f) score = soft_cap(score, block.cap);
    score = _mm256_blendv_ps(never, score, _mm256_castsi256_ps(seen));
    _mm256_storeu_ps(scores + i, score);
    best = _mm256_max_ps(best, score);
  }
  const float top = std::fmax(*row.top, largest(best));
  __m256 total = _mm256_loadu_ps(row.total);
  if (top > *row.top) {
    const __m256 keep = exponential(_mm256_set1_ps(*row.top - top));
    total = _mm256_mul_ps(total, keep);
    for (int64_t d = 0; d < block.dim; d += 8)
      _mm256_storeu_ps(row.out + d, _mm256_mul_ps(_mm256_loadu_ps(row.out + d), keep));
    *row.top = top;
  }
  for (int64_t i = 0; i < kBlock; i += 8) {
    const __m256 score = _mm256_loadu_ps(scores + i);
    const __m256 unseen = _mm256_cmp_ps(score, never, _CMP_EQ_OQ);
    const __m256 weight = _mm256_andnot_ps(unseen, exponential(_mm256_sub_ps(score, _mm256_set1_ps(top))));
    _mm256_storeu_ps(scores + i, weight);
    total = _mm256_add_ps(total, weight);
  }
  _mm256_storeu_ps(row.total, total);
}

// out[r] += weights[r] . values, over the keys [first, last) of the block.
template <int R, int L>
void mix(const Block& block, const Row* rows, const float (*weights)[kBlock], int64_t d, int64_t first, int64_t last) {
  __m256 sums[R][L];
  for (int r = 0; r < R; ++r)
    for (int l = 0; l < L; ++l) sums[r][l] = _mm256_loadu_ps(rows[r].out + d + 8 * l);
  for (int64_t key = first; key < last; ++key) {
    const float* values = block.values + key * block.dim + d;
    __m256 weight[R];
    for (int r = 0; r < R; ++r) weight[r] = _mm256_broadcast_ss(&weights[r][key]);
    for (int l = 0; l < L; ++l) {
      const __m256 value = _mm256_loadu_ps(values + 8 * l);
      for (int r = 0; r < R; ++r) sums[r][l] = _mm256_fmadd_ps(weight[r], value, sums[r][l]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int l = 0; l < L; ++l) _mm256_storeu_ps(rows[r].out + d + 8 * l, sums[r][l]);
}

template <int R>
void fold_tile(const Block& block, const Row* rows) {
  float scores[R][kBlock];
  score<R>(block, rows, scores);
  int64_t first = kBlock, last = 0;
  for (int r = 0; r < R; ++r) {
    weigh(block, rows[r], scores[r]);
    const int64_t from = rows[r].from - block.first, to = rows[r].to - block.first;
    first = from < first ? from : first;
    last = to > last ? to : last;
  }
  first = first > 0 ? first : 0;
  last = last < kBlock ? last : kBlock;
  int64_t d = 0;
  for (; d + 8 * kLanes <= block.dim; d += 8 * kLanes) mix<R, kLanes>(block, rows, scores, d, first, last);
  for (; d < block.dim; d += 8) mix<R, 1>(block, rows, scores, d, first, last);
}

}  // namespace

void fold_rows(const Block& block, const Row* rows, int64_t count) {
  int64_t r = 0;
  for (; r + kRows <= count; r += kRows) fold_tile<kRows>(block, rows + r);
  if (count - r == 2) fold_tile<2>(block, rows + r);
  if (count - r == 1) fold_tile<1>(block, rows + r);
}

void finish_row(const Row& row, int64_t dim, float* out) {
  const float total = reduce(_mm256_loadu_ps(row.total));
  const __m256 divisor = _mm256_set1_ps(total > 0.0f ? total : 1.0f);
  for (int64_t d = 0; d < dim; d += 8) _mm256_storeu_ps(out + d, _mm256_div_ps(_mm256_loadu_ps(row.out + d), divisor));
}

void widen(const uint16_t* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += 8) {
    const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
    _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)));
  }
}

}  // namespace jaxfold
