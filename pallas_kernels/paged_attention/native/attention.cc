// XLA custom call: ragged attention of query windows over paged keys and values, as in paged_attention/reference.py.
//
// q, pages: bfloat16 or float32; the arithmetic is float32 with an online softmax over blocks of 64 keys by absolute
// position. A query's result depends on its own keys alone: not on other lanes, other columns or the table's width.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "parallel.h"
#include "rows.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace jaxfold {
namespace {

constexpr int64_t kTaskColumns = 16;  // query columns of one task, which widens each block of keys once

// Everything that the tasks of a call read.
template <typename Stored>
struct Call {
  const Stored *q, *keys, *values;
  const int32_t *table, *start, *length;
  float* out;
  int64_t lanes, columns, heads, dim, kv_heads, pages, page, width;
  int64_t window;  // 0: none
  float scale, cap;
};

void load(const float* in, int64_t count, float* out) { std::memcpy(out, in, count * sizeof(float)); }
void load(const uint16_t* in, int64_t count, float* out) { widen(in, count, out); }

// Memory of one thread, kept between calls.
struct Scratch {
  std::vector<float> keys, values, queries, outs, totals, tops;
  std::vector<Row> rows, seeing;
};

template <typename Stored>
void gather(const Call<Stored>& call, const Stored* pool, int64_t lane, int64_t head, int64_t first, int64_t last,
            float* out) {
  for (int64_t key = first; key < first + kBlock;) {
    const int64_t here = std::min(call.page - key % call.page, first + kBlock - key);
    const int64_t place = key / call.page;
    const int64_t page = place < call.width ? call.table[lane * call.width + place] : -1;
    // A key that has no page counts as zeros: nothing outside the pool is ever read.
    const int64_t known = page >= 0 && page < call.pages ? std::clamp<int64_t>(last - key, 0, here) : 0;
    float* to = out + (key - first) * call.dim;
    if (known > 0) {
      load(pool + ((head * call.pages + page) * call.page + key % call.page) * call.dim, known * call.dim, to);
    }
    std::fill(to + known * call.dim, to + here * call.dim, 0.0f);
    key += here;
  }
}

template <typename Stored>
void attend(const Call<Stored>& call, int64_t lane, int64_t head, int64_t column) {
  static thread_local Scratch scratch;
  const int64_t group = call.heads / call.kv_heads, dim = call.dim;
  const int64_t start = call.start[lane];
  const int64_t columns = std::min(call.columns, column + kTaskColumns) - column;
  const int64_t live = std::clamp<int64_t>(call.length[lane] - column, 0, columns);
  const auto place = [&](int64_t c, int64_t g) { return ((lane * call.columns + column + c) * call.heads + head * group + g) * dim; };
  for (int64_t c = live; c < columns; ++c) std::fill_n(call.out + place(c, 0), group * dim, 0.0f);
  if (live == 0) return;
  const int64_t count = live * group;
  scratch.keys.resize(kBlock * dim);
  scratch.values.resize(kBlock * dim);
  scratch.queries.resize(count * dim);
  scratch.outs.assign(count * dim, 0.0f);
  scratch.totals.assign(count * 8, 0.0f);
  scratch.tops.assign(count, -std::numeric_limits<float>::infinity());
  scratch.rows.resize(count);
  int64_t begin = std::numeric_limits<int64_t>::max();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = start + column + i / group;
    load(call.q + place(i / group, i % group), dim, scratch.queries.data() + i * dim);
    const int64_t from = call.window > 0 ? std::max<int64_t>(0, position - call.window + 1) : 0;
    scratch.rows[i] = {scratch.queries.data() + i * dim, scratch.outs.data() + i * dim, scratch.totals.data() + i * 8,
                       scratch.tops.data() + i, from, position + 1};
    begin = std::min(begin, from);
  }
  const int64_t last = start + column + live;
  for (int64_t first = begin / kBlock * kBlock; first < last; first += kBlock) {
    gather(call, call.keys, lane, head, first, last, scratch.keys.data());
    gather(call, call.values, lane, head, first, last, scratch.values.data());
    scratch.seeing.clear();
    for (const Row& row : scratch.rows)
      if (row.from < first + kBlock && row.to > first) scratch.seeing.push_back(row);
    const Block block = {scratch.keys.data(), scratch.values.data(), first, dim, call.scale, call.cap};
    fold_rows(block, scratch.seeing.data(), static_cast<int64_t>(scratch.seeing.size()));
  }
  for (int64_t i = 0; i < count; ++i) finish_row(scratch.rows[i], dim, call.out + place(i / group, i % group));
}

template <typename Stored>
void run(ffi::ThreadPool& pool, const Call<Stored>& call) {
  const int64_t tiles = (call.columns + kTaskColumns - 1) / kTaskColumns;
  parallel_for(pool, call.lanes * call.kv_heads * tiles, [&](int64_t task) {
    // The last columns see the most keys, so their tasks go first.
    const int64_t tile = tiles - 1 - task / (call.lanes * call.kv_heads), rest = task % (call.lanes * call.kv_heads);
    attend(call, rest / call.kv_heads, rest % call.kv_heads, tile * kTaskColumns);
  });
}

template <typename Stored>
Call<Stored> describe(ffi::AnyBuffer q, ffi::AnyBuffer keys, ffi::AnyBuffer values, ffi::Buffer<ffi::S32> table,
                      ffi::Buffer<ffi::S32> start, ffi::Buffer<ffi::S32> length, ffi::ResultBuffer<ffi::F32> out,
                      float scale, float cap, int64_t window) {
  const auto rows = q.dimensions(), pool = keys.dimensions();
  return {static_cast<const Stored*>(q.untyped_data()), static_cast<const Stored*>(keys.untyped_data()),
          static_cast<const Stored*>(values.untyped_data()), table.typed_data(), start.typed_data(),
          length.typed_data(), out->typed_data(), rows[0], rows[1], rows[2], rows[3], pool[0], pool[1], pool[2],
          table.dimensions()[1], window, scale, cap};
}

ffi::Error attention(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer keys, ffi::AnyBuffer values,
                     ffi::Buffer<ffi::S32> table, ffi::Buffer<ffi::S32> start, ffi::Buffer<ffi::S32> length,
                     ffi::ResultBuffer<ffi::F32> out, float scale, float cap, int64_t window) {
  if (q.element_type() != keys.element_type() || keys.element_type() != values.element_type())
    return ffi::Error::InvalidArgument("queries, keys and values have different types");
  if (q.dimensions()[3] % 8 != 0) return ffi::Error::InvalidArgument("the head size is no multiple of 8");
  if (q.element_type() == ffi::F32)
    run(pool, describe<float>(q, keys, values, table, start, length, out, scale, cap, window));
  else if (q.element_type() == ffi::BF16)
    run(pool, describe<uint16_t>(q, keys, values, table, start, length, out, scale, cap, window));
  else
    return ffi::Error::InvalidArgument("queries are neither float32 nor bfloat16");
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxfold

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxfold_paged_attention, jaxfold::attention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<float>("scale")
                                  .Attr<float>("cap")
                                  .Attr<int64_t>("window"));

// The instruction set in use, or null where the processor has none that is needed.
extern "C" const char* jaxfold_attention_form() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "avx2" : nullptr;
}
