// A square block transposed in registers: a load and a store a row, and log2(lanes) shuffles a row between them.
#include "emit/llvm/printer.h"

namespace trainc::emit {
using llvm::Value;

namespace {

using Rows = std::vector<Value*>;
using Pick = std::function<int(int)>;  // lane -> lane of (a, b) side by side

Value* shuffle(Builder& b, Value* x, Value* y, const Pick& pick) {
  std::vector<int> lanes;
  for (int i = 0; i < lanes_of(x); ++i) lanes.push_back(pick(i));
  return b.CreateShuffleVector(x, y, lanes);
}

// x86 shuffles within 16 bytes, or moves 16 bytes whole: first the small squares of `chunk` elements, then the chunks
// as elements.
Rows transposed(Builder& b, Rows rows, int chunk) {
  const int n = static_cast<int>(rows.size());
  // Within each group of `chunk` rows: interleave row i with row i + chunk/2 (unpcklps, unpckhps), log2(chunk) times.
  for (int done = 1; done < chunk; done *= 2) {
    Rows next(rows.size());
    for (int group = 0; group < n; group += chunk)
      for (int i = 0; i < chunk / 2; ++i)
        for (int half = 0; half < 2; ++half)
          next[size_t(group + 2 * i + half)] =
              shuffle(b, rows[size_t(group + i)], rows[size_t(group + i + chunk / 2)], [&](int lane) {
                const int within = half * chunk / 2 + lane % chunk / 2;
                return lane / chunk * chunk + within + (lane % 2 ? n : 0);
              });
    rows = std::move(next);
  }
  // Row `chunk * group + i` now has, as its q-th chunk, column chunk * q + i of the group's rows. For each i the chunks
  // are a square to be transposed: the even, then the odd chunks of two neighbours (vshuff32x4), log2(chunks) times.
  const int chunks = n / chunk;
  for (int done = 1; done < chunks; done *= 2) {
    Rows next(rows.size());
    for (int i = 0; i < chunk; ++i)
      for (int pair = 0; pair < chunks / 2; ++pair)
        for (int odd = 0; odd < 2; ++odd)
          next[size_t((pair + odd * chunks / 2) * chunk + i)] =
              shuffle(b, rows[size_t(2 * pair * chunk + i)], rows[size_t((2 * pair + 1) * chunk + i)],
                      [&](int lane) { return (2 * (lane / chunk) + odd) * chunk + lane % chunk; });
    rows = std::move(next);
  }
  return rows;
}

}  // namespace

void Printer::transpose(const loop::StmtNode& n) {
  const Storage &to = storage_[static_cast<size_t>(n.buffer)], &from = storage_[static_cast<size_t>(n.source)];
  const auto at = [&](const Storage& s, Value* base, int64_t row, int64_t pitch) {
    return b_.CreateConstInBoundsGEP1_64(s.element, base, static_cast<uint64_t>(row * pitch));
  };
  Value *target = address(to, scalar(n.index), true), *source = address(from, scalar(n.value), true);
  Rows rows;
  for (int j = 0; j < n.lanes; ++j)  // in the target's elements: two bf16 make one i32
    rows.push_back(tag(
        b_.CreateAlignedLoad(widen(to.element, n.lanes), at(from, source, j, n.source_pitch), align_of(from)), from));
  rows = transposed(b_, std::move(rows), std::min<int>(n.lanes, static_cast<int>(16 / size_of(to.dtype))));
  for (int i = 0; i < n.lanes; ++i)
    tag(b_.CreateAlignedStore(rows[size_t(i)], at(to, target, i, n.pitch), align_of(to)), to);
}

}  // namespace trainc::emit
