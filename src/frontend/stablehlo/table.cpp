#include "frontend/stablehlo/table.h"

namespace trainc::frontend::stablehlo {

void Table::add(std::initializer_list<const char*> names, Handler handler) {
  for (const char* name : names) require(rows_.emplace(name, handler).second, std::string("two rows for ") + name);
}

const Handler* Table::find(std::string_view name) const {
  auto it = rows_.find(name);
  return it == rows_.end() ? nullptr : &it->second;
}

const Table& table() {
  static const Table t = [] {
    Table t;
    add_elementwise(t);
    add_movements(t);
    add_reductions(t);
    add_windows(t);
    add_contractions(t);
    add_convolution(t);
    add_indexing(t);
    add_sort(t);
    add_functions(t);
    add_control(t);
    return t;
  }();
  return t;
}

}  // namespace trainc::frontend::stablehlo
