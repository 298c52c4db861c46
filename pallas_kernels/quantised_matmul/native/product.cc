// XLA custom call: y = x w^T with x quantised by row to int16 and w int8 with one scale an output.
//
// The arithmetic is that of xla.py, step for step and bit for bit: compile with -ffp-contract=off.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "parallel.h"
#include "tile.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace jaxfold {
namespace {

constexpr int64_t kTaskOutputs = 64;   // weight rows of one task
constexpr int64_t kTaskRows = 16;      // rows that one task quantises
constexpr int64_t kAlign = 32;         // int16 values; what the widest instruction loads

TileFn pick_tile() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni"))
    return tile_avx512vnni;
  return __builtin_cpu_supports("avx2") ? tile_avx2 : nullptr;
}

// One row: q = round(x * (limit / max|x|)), step = max|x| * (1 / limit). A row of (nearly) zeros has step 0.
void quantise(const float* x, int64_t k, int64_t stride, int32_t limit, float smallest, int16_t* q, float* step) {
  float most = 0.0f;
  for (int64_t i = 0; i < k; ++i) {
    const float size = std::fabs(x[i]);
    most = size > most ? size : most;
  }
  const bool empty = !(most >= smallest);
  const float inverse = empty ? 0.0f : static_cast<float>(limit) / most;
  *step = empty ? 0.0f : most * (1.0f / static_cast<float>(limit));
  const float bound = static_cast<float>(limit);
  for (int64_t i = 0; i < k; ++i) {
    float value = std::nearbyint(x[i] * inverse);
    value = value < bound ? value : bound;
    value = value > -bound ? value : -bound;
    q[i] = static_cast<int16_t>(value);
  }
  for (int64_t i = k; i < stride; ++i) q[i] = 0;
}

struct Free {
  void operator()(void* p) const { std::free(p); }
};

ffi::Error product(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::S8> w, ffi::Buffer<ffi::F32> scale,
                   ffi::ResultBuffer<ffi::F32> y, int32_t limit, float smallest) {
  static const TileFn tile = pick_tile();
  if (tile == nullptr) return ffi::Error::Internal("this processor has no AVX2");
  const int64_t rows = x.dimensions()[0], k = x.dimensions()[1], outputs = w.dimensions()[0];
  const int64_t stride = (k + kAlign - 1) / kAlign * kAlign;
  const size_t bytes = static_cast<size_t>(rows * stride) * sizeof(int16_t);
  std::unique_ptr<int16_t, Free> q(static_cast<int16_t*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
  std::unique_ptr<float[]> steps(new (std::nothrow) float[rows]);
  if (!q || !steps) return ffi::Error(ffi::ErrorCode::kResourceExhausted, "no memory for the quantised rows");
  const float* in = x.typed_data();
  const auto quantise_rows = [&](int64_t task) {
    const int64_t last = std::min(rows, (task + 1) * kTaskRows);
    for (int64_t r = task * kTaskRows; r < last; ++r)
      quantise(in + r * k, k, stride, limit, smallest, q.get() + r * stride, steps.get() + r);
  };
  parallel_for(pool, (rows + kTaskRows - 1) / kTaskRows, quantise_rows);
  const int8_t* weights = w.typed_data();
  const float* scales = scale.typed_data();
  float* out = y->typed_data();
  const auto multiply = [&](int64_t task) {
    const int64_t first = task * kTaskOutputs, count = std::min(kTaskOutputs, outputs - first);
    tile(q.get(), stride, rows, weights + first * k, k, count, steps.get(), scales + first, out + first, outputs);
  };
  parallel_for(pool, (outputs + kTaskOutputs - 1) / kTaskOutputs, multiply);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxfold

// For the check at load, without JAX: the same arithmetic on one thread.
extern "C" void jaxfold_int8_rows(const float* x, const int8_t* w, const float* scale, float* y, int64_t rows, int64_t k,
                                  int64_t outputs, int32_t limit, float smallest) {
  const int64_t stride = (k + jaxfold::kAlign - 1) / jaxfold::kAlign * jaxfold::kAlign;
  std::vector<int16_t> q(rows * stride);
  std::vector<float> steps(rows);
  for (int64_t r = 0; r < rows; ++r)
    jaxfold::quantise(x + r * k, k, stride, limit, smallest, q.data() + r * stride, steps.data() + r);
  jaxfold::pick_tile()(q.data(), stride, rows, w, k, outputs, steps.data(), scale, y, outputs);
}

// The instruction set in use, or null where the processor has none that is needed.
extern "C" const char* jaxfold_int8_form() {
  const jaxfold::TileFn tile = jaxfold::pick_tile();
  return tile == nullptr ? nullptr : tile == jaxfold::tile_avx2 ? "avx2" : "avx512-vnni";
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxfold_int8_product, jaxfold::product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S8>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int32_t>("limit")
                                  .Attr<float>("smallest"));
