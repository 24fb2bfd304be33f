// Integers that are known while a module is imported: a loop's counter, the place of a slice.
#pragma once
#include <optional>
#include <unordered_map>

#include "graph/graph.h"
#include "reference/reference.h"

namespace trainc::frontend::stablehlo {

class Known {
 public:
  /// The elements of a small tensor of integers or bools that depends on no argument; nothing of any other.
  std::optional<std::vector<int64_t>> integers(const Node*);
  std::optional<int64_t> integer(const Node*);  // of one element

 private:
  const std::optional<reference::Tensor>& value(const Node*);
  std::optional<reference::Tensor> compute(const Node*);
  std::unordered_map<const Node*, std::optional<reference::Tensor>> values_;
};

}  // namespace trainc::frontend::stablehlo
