// How wide a Vector loop should be. Takes: its statements. Gives: lanes.
#pragma once
#include <vector>

#include "loop/loop.h"

namespace trainc::loop {

/// Lanes for a Vector loop of `extent` over `body`, where a register holds `lanes`: several registers wide, up to four,
/// where a statement is so long a chain of operations that one register at a time would wait for each result. With a
/// Reduce inside it is `lanes`: its order of sums must not depend on this.
int lanes_for(const std::vector<Stmt>& body, int lanes, int64_t extent);

}  // namespace trainc::loop
