// Rows of a matrix that labels hide from a loss: found by what is zero of them. Inside schedule only.
#pragma once
#include <optional>
#include <unordered_set>
#include <vector>

#include "graph/graph.h"

namespace trainc::schedule {

/// A bool a row; the row is hidden where it is not `shown`.
struct ShownRows {
  const Node* mask;
  bool shown;
};

/// Finds a bool a row, made of nothing in `after`, such that all of `zeros` are 0 in the rows where it says so. Each of
/// these has an element for each row, or `columns` of them, row after row. Nothing is known of labels: it is read off
/// selections by that bool, and what they become; the product of 0 and another number counts as 0, though it is NaN
/// where that one is infinite or NaN (docs/numerics.md).
std::optional<ShownRows> shown_rows(const std::vector<const Node*>& zeros, int64_t rows, int64_t columns,
                                    const std::unordered_set<const Node*>& after);

}  // namespace trainc::schedule
