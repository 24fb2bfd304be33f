// A remark as JSON: in a plan's file, and in the report that Python reads.
#pragma once
#include <nlohmann/json.hpp>

#include "support/remark.h"

namespace trainc {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Remark, stage, what, reason, detail, origins, count, bytes)

}  // namespace trainc
