// Reductions: those whose function is one operation are the graph's; any other is made in halves.
#include "frontend/stablehlo/monoid.h"
#include "frontend/stablehlo/table.h"

namespace trainc::frontend::stablehlo {
namespace {

Values reduce(const Call& c) {
  const size_t n = c.in.size() / 2;
  const Values x(c.in.begin(), c.in.begin() + static_cast<std::ptrdiff_t>(n));
  const Values init(c.in.begin() + static_cast<std::ptrdiff_t>(n), c.in.end());
  c.need(n > 0 && c.in.size() == 2 * n, "takes as many initial values as operands");
  Dims axes = c.list("dimensions");
  std::sort(axes.begin(), axes.end());
  return reduced(Monoid(c, c.region(0)), x, init, axes);
}

}  // namespace

void add_reductions(Table& t) { t.add({"stablehlo.reduce"}, reduce); }

}  // namespace trainc::frontend::stablehlo
