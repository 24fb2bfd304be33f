// Rows that are wanted before those that are not, at run time: which chunks of them are computed, and where each row is
// then. Inside schedule only.
#pragma once
#include <vector>

#include "graph/build.h"

namespace trainc::schedule {

struct RowOrder {
  struct Part {
    int64_t rows = 0;
    const Node* index = nullptr;  // i64 [rows]: which rows it takes
    const Node* runs = nullptr;   // bool [1], a copy (guards.h asks for one): whether it is computed
  };
  std::vector<Part> parts;
  // i64 [R]: of each row its place among the rows of all parts, one part after the other; behind them all where no part
  // that runs has it
  const Node* place = nullptr;
  int64_t total = 0;  // rows of all parts
};

/// Makes the nodes of it in the builder's graph, for `shown` (bool [R], R >= 2). Rows that are shown come first, in
/// their order, then the others in theirs. Parts: chunks of `chunk` rows (the last has the rest of R), which stand at
/// fixed places of that order; then smaller ones, each half as large as the one before and a power of two times
/// `finest` rows, whose places are found at run time: behind the chunks that run. So each shown row is in one part that
/// runs, no row is in two, and fewer than `finest` hidden ones are computed beside them. Where all are shown, all
/// chunks run, and nothing else. No parts: there is nothing to choose from.
RowOrder order_rows(Builder&, const Node* shown, int64_t chunk, int64_t finest);

}  // namespace trainc::schedule
