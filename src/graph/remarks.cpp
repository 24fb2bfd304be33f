#include "graph/remarks.h"

namespace trainc {

std::string_view NodeRemarks::line(const Node* n) const {
  constexpr int kFarthest = 16;
  for (int i = 0; i < kFarthest && n->op != Op::Input; ++i) {  // an argument's origin is its name
    if (const std::vector<std::string>& origins = graph_.origins(n); !origins.empty()) return origins[0];
    if (n->inputs.empty()) break;
    n = n->in(0);
  }
  return {};
}

}  // namespace trainc
