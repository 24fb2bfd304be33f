#include "support/dump.h"

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace trainc {

bool environment_lists(const char* variable, std::string_view word) {
  const char* text = std::getenv(variable);
  std::string_view rest = text ? text : "";
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    if (rest.substr(0, comma) == word) return true;
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
  }
  return false;
}

std::string dump_directory() {
  const char* set = std::getenv("TRAINC_DUMP_DIR");
  return set && *set ? set : "trainc-dump";
}

std::string write_dump(std::string name, std::string_view text) {
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.') c = '_';
  const std::filesystem::path directory = dump_directory();
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const std::filesystem::path path = directory / name;
  std::ofstream file(path);
  file << text;
  file.close();
  return file ? path.string() : "";
}

}  // namespace trainc
