// What a scatter does where several elements go to one place.
#pragma once
#include "frontend/stablehlo/monoid.h"

namespace trainc::frontend::stablehlo {

struct Scattered {
  Value place;
  Values source;
};

/// The elements of one place combined to one, which goes there; the others go to `nowhere`. place: [batch, n, 1], i64;
/// source: [batch, n, rest] each. The result's order is another one.
Scattered combined(const Monoid&, Value place, Values source, int64_t nowhere);

}  // namespace trainc::frontend::stablehlo
