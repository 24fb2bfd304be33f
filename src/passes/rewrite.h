// Rebuilding a graph: the one way in which passes change it.
#pragma once
#include <functional>
#include <vector>

#include "graph/build.h"

namespace trainc {

/// Gives the node of the new graph that stands for `from`; `inputs` stand for from's inputs. The builder makes nodes in
/// the new graph and carries from's first origin.
using Rebuild = std::function<const Node*(Builder&, const Node* from, const std::vector<const Node*>& inputs)>;

/// Calls `rebuild` once for each live node, inputs first. Gives: a graph with the outputs and effects of `graph` and
/// its input_count; what stands for a node keeps its origins.
/// `rebuild` may give nullptr for a node whose value nobody asks for; for an output that is an error, an effect is none
/// then.
Graph rewrite(const Graph&, const Rebuild&);

/// `from` with other inputs, of the same types, in the builder's graph.
const Node* with_inputs(Builder&, const Node* from, const std::vector<const Node*>& inputs);

/// Without the nodes that no output and no effect needs.
Graph remove_dead(const Graph&);

}  // namespace trainc
