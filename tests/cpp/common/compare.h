// Equality of reference tensors, as strict as a test wants it.
#pragma once
#include <cmath>
#include <string>

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
    if (a.i[i] != b.i[i]) return "element " + std::to_string(i) + ": " + std::to_string(a.i[i]) + " is not " + std::to_string(b.i[i]);
  return "";
}

}  // namespace trainc::testing
