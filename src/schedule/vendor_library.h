// What the vendor's library of matrix products is to compute. Inside schedule only, but for who compiles for a device.
#pragma once
#include <compare>
#include <cstdint>
#include <set>

#include "plan/plan.h"

namespace trainc::schedule {

/// A product as a graph knows it, before it is laid out.
struct ProductShape {
  int64_t batch, m, n, k;
  DType in, out;
  bool bias = false, addend = false, sums = false;

  bool has_epilogue() const { return bias || addend || sums; }
  auto operator<=>(const ProductShape&) const = default;
};
inline ProductShape shape_of(const plan::Product& p) {
  return {p.batch, p.m, p.n, p.k, p.lhs.dtype, p.result.dtype, p.bias, p.addend, p.sums_of != plan::SumsOf::None};
}

struct VendorLibrary {
  int64_t least_flops = 0;  // contractions of so many operations are its; 0: none is
  // Products with an epilogue that it has no algorithm for: it is asked for less of them, and kernels do the rest.
  std::set<ProductShape> refused = {};
};

}  // namespace trainc::schedule
