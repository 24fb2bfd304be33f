#include "frontend/stablehlo/table.h"

namespace trainc::frontend::stablehlo {

const Table& table() {
  static const Table t = [] {
    Table t;
    add_elementwise(t);
    add_movements(t);
    add_reductions(t);
    add_windows(t);
    add_contractions(t);
    add_convolution(t);
    add_normalization(t);
    add_indexing(t);
    add_sort(t);
    add_random(t);
    add_functions(t);
    add_control(t);
    return t;
  }();
  return t;
}

const Table& complex_table() {
  static const Table t = [] {
    Table t;
    add_complex(t, table());
    return t;
  }();
  return t;
}

}  // namespace trainc::frontend::stablehlo
