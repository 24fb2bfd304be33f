// The tensor-core step of an Mma statement: sums[16, 8] += a[16, k] * b[8, k], and which of its elements each thread of
// the warp holds. From "Matrix Fragments for mma.m16n8k16" and "mma.m16n8k8" of NVIDIA's PTX ISA. Includes: support.
#pragma once
#include "support/dtype.h"

namespace trainc::loop {

constexpr int kMmaM = 16, kMmaN = 8;
constexpr int mma_k(DType operands) { return operands == DType::BF16 ? 16 : 8; }
constexpr int kMmaSums = 4;  // elements a thread
constexpr int mma_a_count(DType operands) { return operands == DType::BF16 ? 8 : 4; }
constexpr int mma_b_count(DType operands) { return operands == DType::BF16 ? 4 : 2; }

/// Thread `lane` of the warp holds, as the i-th element of its fragment, the one at row lane / 4 + `row` and column
/// lane % 4 * `step` + `column`. Rows and columns: a [m, k], b [n, k], sums [m, n].
struct MmaElement { int row, step, column; };
constexpr MmaElement mma_a_place(DType operands, int i) {
  return operands == DType::BF16 ? MmaElement{i / 2 % 2 * 8, 2, i % 2 + i / 4 * 8}
                                 : MmaElement{i % 2 * 8, 1, i / 2 * 4};
}
constexpr MmaElement mma_b_place(DType operands, int i) {
  return operands == DType::BF16 ? MmaElement{0, 2, i % 2 + i / 2 * 8} : MmaElement{0, 1, i * 4};
}
constexpr MmaElement mma_sum_place(int i) { return {i / 2 * 8, 2, i % 2}; }

}  // namespace trainc::loop
