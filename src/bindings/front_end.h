// Which front end reads a graph. Its text says so: {"front": "stablehlo", ...}; without the word it is ATen's. What is
// kept of a graph (plans' keys) thereby has it, too.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "graph/program.h"
#include "support/mask_generator.h"

namespace trainc::bindings {

Program import_graph(const std::string& json, MaskGenerator generator = MaskGenerator::Twister);
/// Operations of a StableHLO graph's "main", by their place in its body, that are not compiled, and why.
std::vector<std::pair<size_t, std::string>> refused_operations(const std::string& json);
/// Names of all operations that `front` has a row for; throws UserError for a word that is no front end.
std::vector<std::string> supported_operations(const std::string& front);

}  // namespace trainc::bindings
