// The table of StableHLO's operations: one row each, a file a family.
#pragma once
#include "frontend/stablehlo/call.h"

namespace trainc::frontend::stablehlo {

class Table {
 public:
  /// One row for each name. A name has one row only.
  void add(std::initializer_list<const char*> names, Handler);
  const Handler* find(std::string_view name) const;
  const std::map<std::string, Handler, std::less<>>& rows() const { return rows_; }

 private:
  std::map<std::string, Handler, std::less<>> rows_;
};

const Table& table();

void add_elementwise(Table&);   // arithmetic, comparisons, logic, shifts, select, conversions
void add_movements(Table&);     // reshape, transpose, slice, pad, concatenate, constants, iota
void add_reductions(Table&);    // reduce
void add_windows(Table&);       // reduce_window, select_and_scatter
void add_contractions(Table&);  // dot_general
void add_convolution(Table&);   // convolution
void add_indexing(Table&);      // gather, scatter
void add_sort(Table&);          // sort, top_k
void add_functions(Table&);     // functions of single elements that are put together
void add_control(Table&);       // call, while, case, if, tuples, what means nothing here

}  // namespace trainc::frontend::stablehlo
