#include "bindings/front_end.h"

#include <nlohmann/json.hpp>

#include "frontend/aten/import.h"
#include "frontend/stablehlo/import.h"
#include "support/error.h"

namespace trainc::bindings {

Program import_graph(const std::string& json, MaskGenerator generator) {
  const nlohmann::json root = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  const std::string front = root.is_object() ? root.value("front", "aten") : "aten";
  if (front == "aten") return frontend::import_aten_graph(root, generator);
  if (front == "stablehlo") return frontend::import_stablehlo(root);
  throw InternalError("import: no front end is called '" + front + "'");
}

std::vector<std::pair<size_t, std::string>> refused_operations(const std::string& json) {
  std::vector<std::pair<size_t, std::string>> found;
  for (auto& [place, reason] : frontend::refused_by_stablehlo(nlohmann::json::parse(json)))
    found.emplace_back(place, reason);
  return found;
}

std::vector<std::string> supported_operations(const std::string& front) {
  if (front == "aten") return frontend::supported_operations();
  if (front == "stablehlo") return frontend::stablehlo_operations();
  throw UserError("supported_operations: front is \"aten\" or \"stablehlo\", not \"" + front + "\"");
}

}  // namespace trainc::bindings
