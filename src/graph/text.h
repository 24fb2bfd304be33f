#pragma once
#include <string>
#include <string_view>
#include "graph/graph.h"
namespace trainc {
// One node a line, live nodes only, numbered from 0 in topological order:
//   %3 = contract %1 %2 : f32[1,8,64]   // model.py:41
//   %4 = reduce %3 kind=sum axes=[2] : f32[1,8]
//   effects %1                       // draws, read or not; only where there are some
//   return %4 %3:strides=[1,8] none
std::string print(const Graph&);
/// parse(print(g)) prints the same, and nodes are equal as pointers when parsed into one graph. InternalError names
/// line and column.
Graph parse(std::string_view);
}  // namespace trainc
