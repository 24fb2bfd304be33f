// In which order draws are made, and groups run. Inside schedule only.
#pragma once
#include <unordered_map>
#include <vector>

#include "schedule/schedule.h"

namespace trainc::schedule {

class Groups;

/// Of a draw: the one before it.
using DrawnBefore = std::unordered_map<const Node*, const Node*>;
/// Draws run one after the other, in the program's order. Brings `live` into an order in which that holds as well.
DrawnBefore order_draws(std::vector<const Node*>& live);

/// Numbers of the groups in an order that runs: a group's reads before it, otherwise as the program had them, but what
/// frees memory as early as it can; draws keep their order. Who makes a value in the memory of an input comes behind
/// the others that read it, unless one of these needs it. Flags (guards.h) come first of all.
std::vector<int> order_groups(const Groups&, const Graph&, const GivenAway&);

}  // namespace trainc::schedule
