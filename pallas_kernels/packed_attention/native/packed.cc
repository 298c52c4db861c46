// XLA custom call: attention inside sequences that lie one after the other, as in packed_attention/reference.py.
//
// float32 with an online softmax over blocks of 64 keys, counted from the sequence's first row: a row's result does not
// depend on where its sequence lies or on what lies around it.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "../../paged_attention/native/rows.h"
#include "parallel.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace jaxfold {
namespace {

constexpr int64_t kTaskRows = 64;  // rows of one task, which copies each block of keys once

// Everything that the tasks of a call read.
struct Packed {
  const float* qkv;  // [rows, 3, heads, dim]
  const int32_t *begin, *end;
  float* out;  // [rows, heads, dim]
  int64_t rows, heads, dim;
  float scale;
};

// Memory of one thread, kept between calls.
struct Scratch {
  std::vector<float> keys, values, outs, totals, tops;
  std::vector<Row> rows;
};

// Rows `first` .. `first + count - 1` of one head, all of the sequence [begin, end).
void attend(const Packed& call, int64_t head, int64_t first, int64_t count, int64_t begin, int64_t end) {
  static thread_local Scratch scratch;
  const int64_t dim = call.dim, width = call.heads * dim, length = end - begin;
  const float* head_of = call.qkv + head * dim;
  scratch.keys.resize(kBlock * dim);
  scratch.values.resize(kBlock * dim);
  scratch.outs.assign(count * dim, 0.0f);
  scratch.totals.assign(count * 8, 0.0f);
  scratch.tops.assign(count, -std::numeric_limits<float>::infinity());
  scratch.rows.resize(count);
  for (int64_t i = 0; i < count; ++i)
    scratch.rows[i] = {head_of + (first + i) * 3 * width, scratch.outs.data() + i * dim, scratch.totals.data() + i * 8,
                       scratch.tops.data() + i, 0, length};
  for (int64_t key = 0; key < length; key += kBlock) {
    const int64_t known = std::min(kBlock, length - key);
    for (int64_t j = 0; j < known; ++j) {
      const float* row = head_of + (begin + key + j) * 3 * width;
      std::memcpy(scratch.keys.data() + j * dim, row + width, dim * sizeof(float));
      std::memcpy(scratch.values.data() + j * dim, row + 2 * width, dim * sizeof(float));
    }
    std::fill(scratch.keys.begin() + known * dim, scratch.keys.end(), 0.0f);
    std::fill(scratch.values.begin() + known * dim, scratch.values.end(), 0.0f);
    fold_rows({scratch.keys.data(), scratch.values.data(), key, dim, call.scale, 0.0f}, scratch.rows.data(), count);
  }
  for (int64_t i = 0; i < count; ++i)
    finish_row(scratch.rows[i], dim, call.out + (first + i) * width + head * dim);
}

void run_task(const Packed& call, int64_t tile, int64_t head) {
  const int64_t last = std::min(call.rows, (tile + 1) * kTaskRows);
  for (int64_t row = tile * kTaskRows; row < last;) {
    const int64_t begin = call.begin[row], end = std::min<int64_t>(call.end[row], call.rows);
    int64_t next = row + 1;
    if (begin < 0 || begin > row || row >= end) {  // padding, or no sequence that holds this row
      std::fill_n(call.out + row * call.heads * call.dim + head * call.dim, call.dim, 0.0f);
    } else {
      while (next < last && call.begin[next] == begin && next < end) ++next;
      attend(call, head, row, next - row, begin, end);
    }
    row = next;
  }
}

ffi::Error packed_attention(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> qkv, ffi::Buffer<ffi::S32> begin,
                            ffi::Buffer<ffi::S32> end, ffi::ResultBuffer<ffi::F32> out, int64_t heads, float scale) {
  const int64_t rows = qkv.dimensions()[0], width = qkv.dimensions()[1];
  if (heads < 1 || width % (3 * heads) != 0 || width / (3 * heads) % 8 != 0)
    return ffi::Error::InvalidArgument("the head size is no multiple of 8");
  const Packed call = {qkv.typed_data(), begin.typed_data(), end.typed_data(), out->typed_data(), rows, heads,
                       width / (3 * heads), scale};
  const int64_t tiles = (rows + kTaskRows - 1) / kTaskRows;
  parallel_for(pool, tiles * heads, [&](int64_t task) { run_task(call, task / heads, task % heads); });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxfold

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxfold_packed_attention, jaxfold::packed_attention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int64_t>("heads")
                                  .Attr<float>("scale"));
