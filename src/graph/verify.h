#pragma once
#include "graph/graph.h"
namespace trainc {
/// Throws InternalError, naming the node, where a row of ops.def is violated; the list of what is checked opens
/// verify.cpp.
void verify(const Node&);
void verify(const Graph&);
}  // namespace trainc
