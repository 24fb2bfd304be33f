// Variances over leading axes, of the sum of x and the sum of its squares: one way over memory instead of two. Inside
// schedule only.
//
// A difference of such sums loses what the mean is larger than the deviations. Here nothing is lost that would be seen:
// both are taken in f64, of f32 numbers, whose squares f64 holds exactly. The error is that of f64 times
// 1 + mean^2 / variance; with deviations from a mean that was rounded to f32 it is that of f32, times the same (Chan,
// Golub, LeVeque, Algorithms for Computing the Sample Variance, 1983).
#pragma once
#include <unordered_map>

#include "graph/graph.h"

namespace trainc::schedule {

/// sum((x - sum(x) / count)^2), over the same axes.
struct Variance {
  const Node *x, *sum, *squares;  // `sum` is of x; `squares` of the squared deviations
  double count;                   // elements of each sum
};

/// Those of f32 in a graph that are taken over leading axes, by both of their sums.
std::unordered_map<const Node*, Variance> variances_of(const Graph&);

}  // namespace trainc::schedule
