// The table of StableHLO's operations: one row each, a file a family.
#pragma once
#include "frontend/stablehlo/call.h"
#include "support/table.h"

namespace trainc::frontend::stablehlo {

using Table = TableOf<Handler>;

const Table& table();
/// The rows of operations with a complex operand or result.
const Table& complex_table();

void add_elementwise(Table&);    // arithmetic, comparisons, logic, shifts, select, conversions
void add_movements(Table&);      // reshape, transpose, slice, pad, concatenate, constants, iota
void add_reductions(Table&);     // reduce
void add_windows(Table&);        // reduce_window, select_and_scatter
void add_contractions(Table&);   // dot_general, dot
void add_convolution(Table&);    // convolution
void add_normalization(Table&);  // batch norms
void add_indexing(Table&);       // gather, scatter
void add_sort(Table&);           // sort, top_k
void add_random(Table&);         // rng_bit_generator
void add_functions(Table&);      // functions of single elements that are put together
void add_control(Table&);        // call, while, case, if, tuples, what means nothing here
/// Those that move parts, or take them as operands of their own, are the rows of reals.
void add_complex(Table&, const Table& of_reals);

}  // namespace trainc::frontend::stablehlo
