// Equality of reference tensors, as strict as a test wants it.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "reference/reference.h"

namespace trainc::testing {

/// Empty where both are the same to the bit (a NaN is a NaN); otherwise the first difference in words.
inline std::string difference(const reference::Tensor& a, const reference::Tensor& b) {
  if (a.type != b.type) return to_string(a.type) + " is not " + to_string(b.type);
  for (size_t i = 0; i < a.f.size(); ++i) {
    const double x = a.f[i], y = b.f[i];
    if (std::isnan(x) ? !std::isnan(y) : x != y || std::signbit(x) != std::signbit(y))
      return "element " + std::to_string(i) + ": " + std::to_string(x) + " is not " + std::to_string(y);
  }
  for (size_t i = 0; i < a.i.size(); ++i)
    if (a.i[i] != b.i[i])
      return "element " + std::to_string(i) + ": " + std::to_string(a.i[i]) + " is not " + std::to_string(b.i[i]);
  return "";
}

/// Sums run in another order than the oracle's, and what follows may amplify that. The inputs of a test are of the
/// order of 1, and so is what its sums add up: below that an error is measured against 1, for a sum may cancel.
inline bool close(double a, double b, double tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b || std::abs(a - b) <= tolerance * std::max({1.0, std::abs(a), std::abs(b)});
}

/// What results of this type may differ by, where f32's may by `tolerance`: f64's by as many units in the last place;
/// those of a 16-bit float by two and a half, which sums in another order leave after they are rounded.
/// `through_f32`: of f64's that were computed of f32's, by `tolerance`.
inline double tolerance_of(double tolerance, DType dtype, bool through_f32 = false) {
  switch (dtype) {
    case DType::F64: return through_f32 ? tolerance : tolerance * 0x1p-29;
    case DType::BF16: return 2.5 * 0x1p-7;
    case DType::F16: return 2.5 * 0x1p-10;
    default: return tolerance;
  }
}

/// Results beside the oracle's; integers are equal, 16-bit floats may differ by more. `skip(o, i)`: elements on which
/// the oracle does not agree with itself.
template <class Skip>
void expect_close(const std::vector<reference::Tensor>& got, const std::vector<reference::Tensor>& expected,
                  double tolerance, const Skip& skip, bool through_f32 = false) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t o = 0; o < got.size(); ++o) {
    const double t = tolerance_of(tolerance, expected[o].type.dtype, through_f32);
    const auto& f = expected[o].f;
    const auto& n = expected[o].i;
    ASSERT_EQ(got[o].type, expected[o].type) << "output " << o;
    ASSERT_TRUE(got[o].f.size() == f.size() && got[o].i.size() == n.size())
        << "output " << o << " is missing, or should be";
    for (size_t i = 0; i < f.size(); ++i) {
      ASSERT_TRUE(skip(o, i) || close(got[o].f[i], f[i], t))
          << "output " << o << " element " << i << ": " << got[o].f[i] << ", not " << f[i];
    }
    for (size_t i = 0; i < n.size(); ++i) {
      ASSERT_TRUE(skip(o, i) || got[o].i[i] == n[i])
          << "output " << o << " element " << i << ": " << got[o].i[i] << ", not " << n[i];
    }
  }
}
inline void expect_close(const std::vector<reference::Tensor>& got, const std::vector<reference::Tensor>& expected,
                         double tolerance = 1e-4) {
  expect_close(got, expected, tolerance, [](size_t, size_t) { return false; });
}

}  // namespace trainc::testing
