// Online softmax of a few query rows over one block of keys. A row's arithmetic is the same whatever rows go with it.
#pragma once

#include <cstdint>

namespace jaxfold {

constexpr int64_t kBlock = 64;  // keys folded at a time, in blocks by absolute position

// What the rows of one task have in common.
struct Block {
  const float* keys;    // [kBlock, dim]
  const float* values;  // [kBlock, dim]
  int64_t first;        // absolute position of the block's first key
  int64_t dim;          // a multiple of 8
  float scale;
  float cap;  // 0: none
};

// One query row and its running state.
struct Row {
  const float* query;  // [dim]
  float* out;          // [dim], weighted sum of values
  float* total;        // [8], partial sums of weights
  float* top;          // largest score so far
  int64_t from, to;    // absolute positions of the keys that it sees: from <= key < to
};

void fold_rows(const Block& block, const Row* rows, int64_t count);

// out[0, dim) = weighted sum / sum of weights.
void finish_row(const Row& row, int64_t dim, float* out);

// bfloat16 (as bits) to float32; `count` is a multiple of 8.
void widen(const uint16_t* in, int64_t count, float* out);

}  // namespace jaxfold
